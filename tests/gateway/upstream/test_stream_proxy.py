"""Streams: byte for byte, as slow as the client, ended the moment it disconnects."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
from raw_client import connect
from raw_client import request as raw_request

BODY = {"model": "m", "prompt": "x", "stream": True}


def test_a_pods_bytes_arrive_unchanged_and_at_once(world):
    events = [b": pod's own comment\n\n", world.event("ä"), b"data: {}\n", b"\n", b"data: [DONE]\n\n"]
    chunks = [world.framed(event) for event in events]
    world.model("m", world.pod(world.does.write(world.STREAM_HEAD, *chunks, b"0\r\n\r\n", gap_s=0.03)))
    with httpx.stream("POST", f"{world.start().url}/v1/completions", json=BODY) as answer:
        chunks = list(answer.iter_raw())
    assert b"".join(chunks) == b"".join(events)
    assert len(chunks) >= 4  # not buffered


def test_events_split_over_many_chunks_and_without_a_last_newline_arrive_complete(world):
    text = world.event("one") + world.event("two") + b"data: [DONE]"
    chunks = [world.framed(text[start : start + 7]) for start in range(0, len(text), 7)]
    world.model("m", world.pod(world.does.write(world.STREAM_HEAD, *chunks, b"0\r\n\r\n")))
    assert world.start().post(json=BODY).content == text


def test_a_client_that_disconnects_ends_the_work_at_the_pod(world):
    pod = world.pod(world.does.talk(words=10_000, gap_s=0.01))
    world.model("m", pod)
    stream = world.start().chat(stream=True)
    next(stream)
    stream.close()
    world.until(lambda: pod.seen[0].was_cut)
    world.until(lambda: world.state()["running"] == 0)
    world.until(lambda: world.metric('wisp_gateway_requests_total{model="default/m",code="499"}') == 1)


def test_a_client_that_disconnects_before_the_answer_ends_the_work_too(world):
    pod = world.pod(world.does.write())
    world.model("m", pod)
    world.start()
    with connect(world) as leaving:
        leaving.sendall(raw_request(**BODY))
        world.until(lambda: pod.seen)
    world.until(lambda: pod.seen[0].was_cut)
    assert world.state()["running"] == 0


def test_a_slow_client_slows_the_pod_and_the_gateway_keeps_little(world):
    """The pod offers 64 MB; while the client does not read, only socket and gateway buffers may fill."""
    written = 0

    async def pour(pod, seen, writer):
        nonlocal written
        writer.write(world.STREAM_HEAD)
        event = world.framed(b"data: " + b"x" * 65530 + b"\n\n")
        for _ in range(1000):
            writer.write(event)
            await writer.drain()
            written += len(event)
        writer.write(b"0\r\n\r\n")

    world.model("m", world.pod(pour))
    world.start()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.connect(("127.0.0.1", world.gateway.config.port))
        connection.sendall(_request(json.dumps(BODY).encode()))
        assert _settled(lambda: written) < 24e6
        assert world.call(_largest_write_buffer, world) < 1e6
        received = 0
        while chunk := connection.recv(1 << 20):
            received += len(chunk)
    assert received > 1000 * 65536  # and nothing was lost


def _request(body):
    head = ["POST /v1/completions HTTP/1.1", "host: x", f"content-length: {len(body)}", "connection: close"]
    return "\r\n".join([*head, "", ""]).encode() + body


def _settled(value):
    last = -1
    while value() != last:
        last = value()
        time.sleep(0.4)
    return last


def _largest_write_buffer(world):
    connections = world.gateway.server.server_state.connections
    return max(connection.transport.get_write_buffer_size() for connection in connections)


def test_a_hundred_streams_at_once_do_not_mix(world):
    async def count(pod, seen, writer):
        name = seen.json["prompt"]
        writer.write(world.STREAM_HEAD)
        for index in range(20):
            writer.write(world.framed(f"data: {name}-{index}\n\n".encode()))
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    world.model("m", world.pod(count), world.pod(count), targetConcurrency=30)
    world.start()

    async def ask(client, name):
        async with client.stream(
            "POST", f"{world.url}/v1/completions", json={**BODY, "prompt": name}
        ) as answer:
            return [line async for line in answer.aiter_lines() if line]

    async def all_clients():
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=100)) as client:
            return await asyncio.gather(*(ask(client, f"c{index}") for index in range(100)))

    for index, lines in enumerate(asyncio.run(all_clients())):
        assert lines == [f"data: c{index}-{step}" for step in range(20)]
    assert min(len(pod.seen) for pod in world.pods) > 30
