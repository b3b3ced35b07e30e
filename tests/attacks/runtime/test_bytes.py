"""Bytes on the runtime's port: heads and bodies without an end, or made to be slow (B3, B4)."""

import time

import pytest
from attack import attack
from endless import BODIES, HEADS, require_refusal
from json_bodies import bodies
from neighbour import MIB
from runtime_target import COMPLETIONS_PATH, RuntimeProcess
from wire import CHAT_PATH, Connection, chat, post

JSON_BODIES = bodies(8 * MIB - 4096)


@pytest.mark.parametrize(("head", "chunk"), HEADS.values(), ids=HEADS)
@attack("B4")
def test_a_head_without_an_end(runtime, head, chunk):
    require_refusal(runtime, head, chunk)


@pytest.mark.parametrize(("head", "chunk"), BODIES.values(), ids=BODIES)
@attack("B4")
def test_a_chunked_body_without_an_end(runtime, head, chunk):
    start = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n".encode()
    require_refusal(runtime, start + head, chunk)


@pytest.mark.parametrize("make", JSON_BODIES.values(), ids=JSON_BODIES)
@attack("B3")
def test_a_body_of_eight_mebibytes(runtime, make):
    body = make()
    path = COMPLETIONS_PATH if b'"prompt"' in body[:100] else CHAT_PATH
    with runtime.connect() as client:
        assert client.send(post(path, body)).answer().status in (400, 404, 413)


@attack("B4")
def test_a_hundred_bodies_announced_and_half_sent(runtime):
    clients = [runtime.connect() for _ in range(100)]
    for client in clients:
        client.send(post(CHAT_PATH, b" " * 32768, length=65536))
    time.sleep(1)
    for client in clients:
        client.close()


@attack("A8")
def test_clients_that_do_not_read_give_their_memory_back(runtime):
    """Each of twenty clients asks for more than its socket holds, and never reads."""
    clients = [runtime.connect(receive_buffer=4096) for _ in range(20)]
    for client in clients:
        fields = {"stream": True, "max_tokens": 400, "n": 4, "ignore_eos": True, "logprobs": True}
        client.send(post(CHAT_PATH, chat("mine", top_logprobs=20, **fields)))
    time.sleep(1)
    for client in clients:
        client.close()
    deadline = time.monotonic() + 60
    while runtime.load()["running"] > 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert runtime.load()["running"] <= 2


@attack("new")
def test_a_hundred_streams_cut_by_their_clients(runtime):
    for _ in range(100):
        with runtime.connect() as client:
            client.send(post(CHAT_PATH, chat("mine", stream=True, max_tokens=1000, ignore_eos=True)))


@attack("new")
def test_five_hundred_connections_that_say_nothing(runtime):
    clients = [runtime.connect() for _ in range(500)]
    time.sleep(1)
    for client in clients:
        client.close()


@attack("C pipelined garbage")
def test_a_thousand_pipelined_requests(runtime):
    with runtime.connect() as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
        client.answer()


def test_an_unfinished_body_does_not_keep_an_idle_server_from_stopping(tmp_path, attacked_model):
    process = RuntimeProcess(tmp_path, attacked_model, "--drain-timeout-s", "600")
    try:
        process.until_ready()
        with Connection("127.0.0.1", process.port) as client:
            client.send(post(CHAT_PATH, b"{", length=100))
            time.sleep(0.5)
            process.terminate()
            assert process.wait(60) == 0
    finally:
        process.stop()
