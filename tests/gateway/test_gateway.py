"""Bounds on slow and many clients, a gateway that goes, pods in doubt, and several operators."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time

import pytest

from wisp_gateway.config import Config
from wisp_gateway.errors import StartError
from wisp_gateway.gateway import Gateway
from wisp_gateway.reporting.demand import Demand


def connect(world, timeout_s=5.0):
    host, port = world.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def read_all(connection):
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def test_a_body_that_does_not_come_is_given_up(world):
    world.model("m", world.pod())
    world.start(body_timeout_s=0.3)
    with connect(world) as connection:
        connection.sendall(HEAD + b'content-length: 100\r\n\r\n{"model"')
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "request_timeout"' in answer
    assert world.post().status_code == 200


def test_who_was_refused_may_not_go_on_sending_for_ever(world):
    world.model("m", world.pod())
    world.start(body_timeout_s=0.3, max_body_bytes=10)
    with connect(world) as connection:
        connection.sendall(HEAD + b"content-length: 100000\r\n\r\n{")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_the_time_for_a_body_is_not_the_time_for_an_answer(world):
    world.model("m", world.pod(world.does.talk(3, gap_s=0.3)))
    world.start(body_timeout_s=0.2, header_timeout_s=0.2)
    assert world.said(world.chat(stream=True)) == "w0 w1 w2 "


def test_one_connection_too_many_is_refused_but_probes_are_answered(world):
    world.model("m", world.pod())
    world.start(max_connections=3)
    idle = [connect(world) for _ in range(3)]
    refused = world.post()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
    assert refused.headers["retry-after"] == "1"
    for path in ("/livez", "/readyz", "/metrics"):
        assert world.http.get(world.url + path, headers={"connection": "close"}).status_code == 200
    for connection in idle:
        connection.close()
    world.until(lambda: world.post().status_code == 200)


def test_a_connection_too_many_that_asks_nothing_is_closed_soon(world):
    world.start(max_connections=1)
    with connect(world), connect(world) as surplus:
        assert read_all(surplus) == b""


def test_not_ready_before_the_directory_was_read_and_ready_ever_after(world):
    world.model("m", world.pod())
    world.directory.is_synced = False
    world.start()
    answer = world.http.get(f"{world.url}/readyz")
    assert (answer.status_code, "directory" in answer.text) == (503, True)
    assert world.http.get(f"{world.url}/livez").status_code == 200
    world.directory.is_synced = True
    assert world.http.get(f"{world.url}/readyz").status_code == 200


def test_a_gateway_that_goes_is_unready_first_and_takes_what_still_comes(world):
    """What a deleted gateway pod does while the endpoint's end is still being told to every node."""
    world.model("m", world.pod(world.does.talk(8, gap_s=0.1)))
    world.start(shutdown_delay_s=0.4, drain_timeout_s=5)
    host, port = world.url.removeprefix("http://").split(":")
    kept = http.client.HTTPConnection(host, int(port), timeout=5)
    kept.request("GET", "/readyz")
    assert kept.getresponse().read() == b"ok\n"
    stream = world.background(lambda: world.said(world.chat(stream=True)))
    world.until(lambda: world.state()["running"] == 1)
    world.call(world.gateway.server.stop)
    kept.request("GET", "/readyz")
    unready = kept.getresponse()
    assert (unready.status, unready.getheader("connection")) == (503, "close")  # go elsewhere now
    late = world.background(lambda: world.said(world.chat(stream=True)))
    assert stream.result(10) == late.result(10) == "w0 w1 w2 w3 w4 w5 w6 w7 "
    world.until(lambda: world._running.done())


def test_a_stream_that_outlives_the_drain_ends_in_an_error_and_not_in_silence(world):
    world.model("m", world.pod(world.does.talk(100, gap_s=0.1)))
    world.start(drain_timeout_s=0.3)
    stream = world.background(lambda: world.post(json={"model": "m", "stream": True, "messages": []}).text)
    world.until(lambda: world.state()["running"] == 1)
    world.call(world.gateway.server.stop)
    assert '"code": "gateway_stopping"' in stream.result(5)


def test_a_pod_that_broke_one_connection_comes_back_though_nobody_waits(world):
    """The directory never saw it unready, so only asking can tell."""
    doubted = world.pod(world.does.write(b"", then="die"))
    other = world.pod()
    world.model("m", doubted, other, routing="LeastLoad")
    world.start()
    assert [world.post().status_code for _ in range(2)] == [200, 200]
    world.until(lambda: [e["ready"] for e in world.state()["endpoints"]].count(True) == 1)
    doubted.handler = world.does.talk()
    world.do(doubted.start())
    world.until(lambda: all(e["ready"] for e in world.state()["endpoints"]), timeout_s=2)


def test_a_draining_pod_gets_nothing_new_and_keeps_what_it_has(world):
    leaving, other = world.pod(world.does.talk(6, gap_s=0.1)), world.pod()
    world.model("m", leaving, routing="LeastLoad")
    world.start()
    stream = world.background(lambda: world.said(world.chat(stream=True)))
    world.until(lambda: leaving.seen)
    ends = [
        {"id": "a", "address": leaving.address, "ready": False, "draining": True},
        {"id": "b", "address": other.address, "ready": True, "draining": False},
    ]
    world.publish([{"namespace": "default", "name": "m", "state": "Ready", "endpoints": ends}])
    assert all(world.post().status_code == 200 for _ in range(10))
    assert stream.result(5).endswith("w5 ")
    assert (len(leaving.seen), len(other.seen)) == (1, 10)


async def _take(pod, seen, writer):
    writer.write(b"HTTP/1.1 204 X\r\n\r\n")


async def _hang(pod, seen, writer):
    await asyncio.sleep(30)


@pytest.fixture
def operators(world, monkeypatch):
    """Two replicas on one port, as a headless Service names them."""
    first = world.pod(_take)
    second = world.pod(_take, host="127.0.0.2", port=first.port)
    hosts = [first.address, second.address]

    async def resolve(self):
        return set(hosts)

    monkeypatch.setattr(Demand, "_resolve", resolve)
    monkeypatch.setattr("wisp_gateway.reporting.demand.RESOLVE_S", 0.05)
    return first, second, hosts


def test_every_replica_of_the_operator_is_told(world, operators):
    first, second, hosts = operators
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 0.3})
    world.start(demand_url=f"http://operator:{first.port}/demand", name="gw")
    world.until(lambda: first.seen and second.seen)
    world.post()
    for replica in (first, second):
        assert any(seen.json["models"]["default/m"]["waiting"] == 1 for seen in replica.seen)
    hosts.pop()  # its pod is gone
    time.sleep(0.2)
    before = len(second.seen)
    world.until(lambda: len(first.seen) > before + 1)
    assert len(second.seen) == before


def test_a_replica_that_hangs_delays_no_other(world, operators, caplog):
    first, second, _ = operators
    first.handler = _hang
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 0.3})
    world.start(demand_url=f"http://operator:{first.port}/demand")
    world.until(lambda: first.seen and second.seen)
    began = time.monotonic()
    waiting = world.background(world.post)
    world.until(lambda: any(seen.json["models"]["default/m"]["waiting"] for seen in second.seen))
    assert time.monotonic() - began < 1.0
    assert waiting.result(5).status_code == 503
    assert "models at zero stay there" not in caplog.text


def test_a_loop_that_ends_ends_the_gateway(world):
    """Better a new pod than one that serves yesterday's directory for ever."""

    async def broken():
        raise RuntimeError("a bug")

    world.directory.run = broken
    world.start()
    with pytest.raises(RuntimeError, match="a bug"):
        world._running.result(10)
    world.gateway = None


def test_a_gateways_name_is_its_hosts_where_the_operator_tells_several_apart(tmp_path):
    assert Config(tmp_path / "models.json").name == "gateway"
    assert Config(None).name == socket.gethostname()
    assert Config(None, name="gw-1").name == "gw-1"


def test_no_credentials_are_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(StartError, match="kubeconfig"):
        Gateway(Config(None, port=0))
