"""Life cycle of the gateway: readiness, shutdown, a loop that ends, its name, its credentials."""

from __future__ import annotations

import http.client
import socket

import pytest

from wisp_gateway.config import Config
from wisp_gateway.errors import StartError
from wisp_gateway.gateway import Gateway


def test_not_ready_before_the_first_snapshot_and_ready_ever_after(world):
    world.model("m", world.pod())
    world.discovery.is_synced = False
    world.start()
    answer = world.http.get(f"{world.url}/readyz")
    assert (answer.status_code, "directory" in answer.text) == (503, True)
    assert world.http.get(f"{world.url}/livez").status_code == 200
    world.discovery.is_synced = True
    assert world.http.get(f"{world.url}/readyz").status_code == 200


def test_a_stopping_gateway_is_unready_first_and_still_takes_requests(world):
    """A deleted gateway pod gets requests until every node has its endpoint removed."""
    world.model("m", world.pod(world.does.talk(8, gap_s=0.1)))
    world.start(shutdown_delay_s=5, drain_timeout_s=60)
    host, port = world.url.removeprefix("http://").split(":")
    kept = http.client.HTTPConnection(host, int(port), timeout=60)
    kept.request("GET", "/readyz")
    assert kept.getresponse().read() == b"ok\n"
    stream = world.background(lambda: world.text_of(world.chat(stream=True)))
    world.until(lambda: world.state()["running"] == 1)
    world.call(world.gateway.server.stop)
    kept.request("GET", "/readyz")
    unready = kept.getresponse()
    assert (unready.status, unready.getheader("connection")) == (503, "close")  # go elsewhere now
    late = world.background(lambda: world.text_of(world.chat(stream=True)))
    assert stream.result(60) == late.result(60) == "w0 w1 w2 w3 w4 w5 w6 w7 "
    world.until(lambda: world._running.done())


def test_a_stream_that_outlives_the_drain_ends_in_an_error_and_not_in_silence(world):
    world.model("m", world.pod(world.does.talk(100, gap_s=0.1)))
    world.start(drain_timeout_s=0.3)
    stream = world.background(lambda: world.post(json={"model": "m", "stream": True, "messages": []}).text)
    world.until(lambda: world.state()["running"] == 1)
    world.call(world.gateway.server.stop)
    assert '"code": "gateway_stopping"' in stream.result(60)


def test_a_loop_that_ends_ends_the_gateway(world):
    """A new pod is better than one that serves an outdated snapshot for ever."""

    async def broken():
        raise RuntimeError("a bug")

    world.discovery.run = broken
    world.start()
    with pytest.raises(RuntimeError, match="a bug"):
        world._running.result(60)
    world.gateway = None


def test_a_gateways_name_is_its_hosts_on_a_cluster(tmp_path):
    assert Config(tmp_path / "models.json").name == "gateway"
    assert Config(None).name == socket.gethostname()
    assert Config(None, name="gw-1").name == "gw-1"


def test_no_credentials_are_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(StartError, match="kubeconfig"):
        Gateway(Config(None, port=0))
