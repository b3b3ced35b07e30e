"""Bytes that no honest client sends: heads without an end, garbage behind a request, answers nobody reads."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from raw_client import HEAD, connect, read_all, read_until, request

from wisp_http.log_lines import TextLines

MIB = 1 << 20
LINE = b"GET /livez HTTP/1.1\r\n"


def send_until_refused(connection: socket.socket, part: bytes, limit_bytes: int) -> int:
    """Send ``part`` again and again until the gateway refuses; return the bytes that it took."""
    sent = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        while sent < limit_bytes:
            sent += connection.send(part)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if connection.recv(1, socket.MSG_PEEK):
                    break
            connection.settimeout(5)
    connection.settimeout(5)
    return sent


@pytest.mark.parametrize(
    ("before", "part"),
    [
        (LINE + b"host: x\r\na: ", b"x"),  # one value, never complete
        (LINE, b"a"),  # one name
        (b"GET /", b"x"),  # one request line
        (b"", b"\r\n"),  # nothing that a parser counts
        (LINE, b"a: b\r\n"),  # many small headers
    ],
)
def test_a_head_without_an_end_is_refused_by_its_raw_bytes(world, before, part):
    world.start()
    with connect(world) as connection:
        connection.sendall(before)
        assert send_until_refused(connection, part * 2048, 64 * MIB) < 8 * MIB
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
    assert world.http.get(f"{world.url}/livez").status_code == 200


def test_a_head_of_too_many_headers_is_refused(world):
    world.start()
    headers = b"".join(b"a%d: b\r\n" % index for index in range(200))
    with connect(world) as connection:
        connection.sendall(LINE + headers + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("before", "part"),
    [
        (b"1;", b"x"),  # a chunk's extension
        (b"1\r\nx\r\n0\r\na: ", b"x"),  # a trailer
        (b"1\r\nx\r\n0\r\n", b"a: b\r\n"),
        (b"", b"1\r\nx\r\n"),  # chunks of one byte: a callback each
    ],
)
def test_the_framing_of_a_body_is_bounded_like_a_head(world, before, part):
    world.model("m", world.pod())
    world.start()
    with connect(world) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + before)
        assert send_until_refused(connection, part * 2048, 64 * MIB) < 8 * MIB
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_body_in_short_chunks_is_served(world):
    world.model("m", world.pod())
    world.start()
    body = b'{"model": "m", "prompt": "' + b"x" * 20_000 + b'"}'
    chunks = b"".join(b"20\r\n%b\r\n" % body[at : at + 32].ljust(32) for at in range(0, len(body), 32))
    with connect(world) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_trailers_never_become_headers_of_the_request(world):
    pod = world.pod()
    world.model("m", pod)
    world.start()
    body = b'{"model": "m", "prompt": "x"}'
    chunked = b"%x\r\n%b\r\n0\r\nx-smuggled: 1\r\nauthorization: Bearer k\r\n\r\n" % (len(body), body)
    with connect(world) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert "x-smuggled" not in pod.seen[0].headers


@pytest.mark.parametrize(
    "garbage",
    [
        b"NONSENSE\r\n\r\n",
        LINE + b"a: " + b"x" * 200_000,
        HEAD + b"content-length: 50\r\n\r\n{",  # its body never comes
        HEAD + b"transfer-encoding: chunked\r\n\r\nnonsense\r\n",
        LINE * 2 + b"\r\n",
        (LINE + b"\r\n") * 50,  # more than may wait
    ],
)
def test_what_follows_a_request_never_reaches_into_its_answer(world, garbage):
    world.model("m", world.pod(world.does.talk(10, gap_s=0.1)))
    world.start(body_timeout_s=0.6, header_timeout_s=0.6)
    with connect(world) as connection:
        connection.sendall(request())
        received = read_until(connection, b"w0")
        connection.sendall(garbage)
        received += read_all(connection)
    stream = received.partition(b"0\r\n\r\n")[0]
    assert b"[DONE]" in stream
    assert stream.count(b"HTTP/1.1") == 1
    assert [b"w%d " % index in stream for index in range(10)] == [True] * 10


@pytest.mark.parametrize("headers", [[], ["connection: close"]])
def test_a_client_that_writes_all_before_it_reads_sees_the_413(world, headers):
    world.model("m", world.pod())
    world.start(max_body_bytes=MIB)
    head = "\r\n".join([*headers, f"content-length: {9 * MIB}", "", ""]).encode()
    with connect(world) as connection:
        connection.sendall(HEAD + head)
        for _ in range(9):
            connection.sendall(b"x" * MIB)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


async def pour(pod, seen, writer):
    """Stream 64 MiB as fast as they are taken."""
    writer.write(pod_head)
    event = b"%x\r\ndata: %b\n\n\r\n" % (65538, b"x" * 65530)
    for _ in range(1000):
        writer.write(event)
        await writer.drain()
    writer.write(b"0\r\n\r\n")


pod_head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_client_that_does_not_read_is_cut_off_and_its_slot_is_free(world):
    pod = world.pod(pour)
    world.model("m", pod, targetConcurrency=1)
    world.start(write_timeout_s=0.5)
    with connect(world, receive_buffer_bytes=4096) as silent:
        silent.sendall(request())
        world.until(lambda: world.state()["running"] == 1)
        world.until(lambda: world.state()["running"] == 0)
        world.until(lambda: pod.seen[0].was_cut)
        pod.handler = world.does.talk()
        assert world.post().status_code == 200


def test_a_stop_ends_although_a_client_does_not_read(world):
    world.model("m", world.pod(pour))
    world.start(drain_timeout_s=0.2)
    with connect(world, receive_buffer_bytes=4096) as silent:
        silent.sendall(request())
        world.until(lambda: world.state()["running"] == 1)
        time.sleep(0.3)
        world.call(world.gateway.server.stop)
        world._running.result(60)


def test_a_finished_answer_that_nobody_takes_does_not_keep_its_connection(world):
    world.model("m", world.pod(world.does.refuse(200, b"x" * (4 * MIB))))
    world.start(write_timeout_s=0.5, keep_alive_s=1)
    with connect(world, receive_buffer_bytes=4096) as silent:
        silent.sendall(request(model="m", prompt="x"))
        world.until(lambda: world.gateway.server.server_state.connections)
        world.http.close()
        world.until(lambda: not world.gateway.server.server_state.connections)


def test_an_unfinished_body_does_not_delay_a_stop(world):
    world.model("m", world.pod())
    world.start()
    with connect(world) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        world.until(lambda: world.gateway.server.server_state.connections)
        world.call(world.gateway.server.stop)
        assert connection.recv(65536).startswith(b"HTTP/1.1 503 ")
        world._running.result(60)


def test_a_path_cannot_write_a_line_of_the_log(world, caplog):
    with caplog.at_level("INFO", logger="wisp_gateway.access"):
        world.start()
        with connect(world) as connection:
            connection.sendall(b"GET /v1/nope%0A2026-01-01%20INFO%20POST HTTP/1.1\r\nhost: x\r\n\r\n")
            connection.recv(65536)
        world.until(lambda: caplog.records)
    lines = [TextLines().format(record) for record in caplog.records if record.name == "wisp_gateway.access"]
    assert lines
    assert not any("\n" in line or "\r" in line for line in lines)


def test_a_slot_is_free_with_the_last_token_although_the_client_has_not_read_it(world):
    async def half_a_mib(pod, seen, writer):
        writer.write(pod_head)
        for _ in range(8):
            writer.write(b"%x\r\ndata: %b\n\n\r\n" % (65538, b"x" * 65530))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    world.model("m", world.pod(half_a_mib), targetConcurrency=1)
    world.start(write_timeout_s=300)
    with connect(world, receive_buffer_bytes=4096) as slow:
        slow.sendall(request("/v1/completions", "connection: close"))
        world.until(lambda: world.metric("wisp_gateway_time_to_first_byte_seconds_count"))
        world.until(lambda: world.state()["running"] == 0)
        received = read_all(slow)
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b"data: x") == 8


def test_the_kernel_keeps_little_of_a_request_behind_an_unfinished_answer(world):
    """The gateway does not read it yet; the kernel would take up to 6 MiB, charged to the container."""
    world.model("m", world.pod(world.does.talk(50, gap_s=0.1)))
    world.start()
    with connect(world) as connection:
        connection.sendall(request())
        read_until(connection, b"w0")
        connection.sendall(HEAD + b"content-length: 100000000\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        connection.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 * MIB:
                sent += connection.send(b"x" * 65536)
    assert sent < 2 * MIB
