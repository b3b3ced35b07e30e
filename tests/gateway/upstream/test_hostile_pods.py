"""Pods that answer without an end: their request fails, and the gateway keeps little of it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import httpx
import pytest
from machine_pace import pace

MIB = 1 << 20
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def flood(before: bytes, part: bytes, limit_bytes: int = 64 * MIB):
    """Return a handler that writes ``part`` until the gateway closes, and the number of bytes it took."""
    taken = [0]

    async def handle(pod, seen, writer):
        writer.write(before)
        with contextlib.suppress(ConnectionError):
            while taken[0] < limit_bytes and not writer.is_closing():
                writer.write(part)
                await writer.drain()
                taken[0] += len(part)
        writer.close()

    return handle, taken


@pytest.mark.parametrize(
    ("before", "part"),
    [
        (b"HTTP/1.1 200 OK\r\na: ", b"x"),  # one value, never complete
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),  # many headers
        (b"HTTP/1.1 200 ", b"x"),  # one reason
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),  # interim answers
        (STREAM + b"1;", b"x"),  # a chunk's extension
        (STREAM + b"1\r\nx\r\n0\r\na: ", b"x"),  # a trailer
        (STREAM, b"1\r\nx\r\n"),  # chunks of one byte
    ],
)
def test_an_answer_whose_frame_does_not_end_is_given_up(world, before, part):
    handle, taken = flood(before, part * 2048)
    world.model("m", world.pod(handle), coldStart={"maxWaitSeconds": 1})
    world.model("other", world.pod())
    world.start()
    assert world.post(timeout=20).status_code in (200, 502, 503)  # 200: a stream that ends in an error event
    assert taken[0] < 16 * MIB
    assert world.post(json={"model": "other", "prompt": "x"}).status_code == 200


def test_headers_of_a_trailer_do_not_reach_the_next_answer(world):
    body = b'{"a": 1}'
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nx-left: 1\r\n\r\n"
    world.model("m", world.pod(world.does.write(answer % (len(body), body))))
    world.start()
    answers = [world.post() for _ in range(3)]
    assert [(answer.status_code, "x-left" in answer.headers) for answer in answers] == [(200, False)] * 3


def test_a_second_answer_closes_the_connection(world):
    """It would be taken for the answer to the next client's request."""
    poison = world.answer(200, b'{"poison": true}')
    pod = world.pod(world.does.write(world.answer(200, b"{}") + poison))
    world.model("m", pod)
    world.start()
    assert [world.post().content for _ in range(3)] == [b"{}"] * 3
    assert pod.connections == 3


@pytest.mark.parametrize("status", [99, 600, 999])
def test_a_status_that_http_does_not_have_is_a_502(world, status, caplog):
    world.model("m", world.pod(world.does.refuse(status, b"{}")), coldStart={"maxWaitSeconds": 1})
    world.start()
    assert world.post().status_code in (502, 503)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_body_of_tiny_chunks_costs_one_write_a_read(world):
    """A hostile pod may make 40,000 chunks of one read; the client gets them as one."""
    pod = world.pod(world.does.write(STREAM + b"20\r\n%b\r\n" % (b"x" * 32) * 5000 + b"0\r\n\r\n"))
    world.model("m", pod)
    world.start()
    assert world.post(json={"model": "m", "prompt": "x", "stream": True}).content == b"x" * 160_000


def test_early_bytes_of_an_answer_are_bounded(world):
    """The body may begin before the gateway reads it; beyond a bound the pod has to wait."""
    handle, taken = flood(STREAM, b"%x\r\n%b\r\n" % (65536, b"x" * 65536), 32 * MIB)
    world.model("m", world.pod(handle))
    world.start(write_timeout_s=0.5)
    with world.http.stream("POST", f"{world.url}/v1/completions", json={"model": "m", "stream": True}):
        pass
    world.until(lambda: world.state()["running"] == 0)
    assert taken[0] <= 32 * MIB


def test_a_count_of_tokens_that_no_float_holds_is_not_believed(world):
    """It was added to the model's counter, and /state answered 500 from then on."""
    world.model(
        "m", world.pod(world.does.refuse(200, b'{"usage": {"completion_tokens": 1%b}}' % (b"0" * 400)))
    )
    world.start()
    assert world.post().status_code == 200
    time.sleep(1.2)  # two samples
    assert world.state()["tokensPerSecond"] < 1e9
    assert world.metric('wisp_gateway_tokens_total{model="default/m"}') < 1e9


def gap_beside(world, attack, seconds=2.0):
    """Return the largest gap of another model's stream while ``attack`` runs, as on an idle machine."""
    world.model("other", world.pod(world.does.talk(int(seconds / 0.02), gap_s=0.02)))
    stream = world.chat(model="other", stream=True)
    next(stream)
    with pace() as machine:
        running = world.background(attack)
        gaps, before_s = [], time.monotonic()
        for _ in stream:
            gaps.append(time.monotonic() - before_s)
            before_s = time.monotonic()
    with contextlib.suppress(httpx.HTTPError):
        running.result(60)
    return max(gaps) / machine.stretch


def test_a_large_answer_that_is_no_stream_is_not_parsed_for_its_error(world):
    """The client of a held stream gets the pod's error as an event; 16 MiB of lists stopped the loop."""
    body = b'{"error": [' + b"[]," * (5 * MIB) + b"0]}"

    async def answer_late(pod, seen, writer):
        await asyncio.sleep(0.5)
        writer.write(world.answer(200, body))

    world.model("m", world.pod(answer_late), coldStart={"heartbeatSeconds": 0.1})
    world.start()
    received = []
    attack = {"model": "m", "prompt": "x", "stream": True}
    assert gap_beside(world, lambda: received.append(world.post(json=attack).text)) < 0.25
    assert '"upstream_failed"' in received[0]


def test_a_stream_of_tiny_chunks_leaves_time_for_others(world):
    handle, _ = flood(STREAM, b"20\r\n%b\r\n" % (b"x" * 32) * 10_000, 48 * MIB)
    world.model("m", world.pod(handle))
    world.start()
    attack = {"model": "m", "prompt": "x", "stream": True}
    assert gap_beside(world, lambda: world.post(json=attack, timeout=60)) < 0.25


def test_a_readiness_answer_without_an_end_is_cut_off(world):
    taken = [0]

    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while taken[0] < 64 * MIB:
                writer.write(b"x" * MIB)
                await writer.drain()
                taken[0] += MIB
        writer.close()

    pod = world.pod()
    world.do(pod.kill())
    server = world.do(asyncio.start_server(endless, "127.0.0.1", pod.port))
    world.model("m", pod, state="Waking", ready=False, coldStart={"maxWaitSeconds": 1})
    world.start().post()
    assert taken[0] < 32 * MIB
    world.call(server.close)
