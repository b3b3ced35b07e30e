"""``x-request-timeout``: queue and answer together end in time, in the client's dialect."""

from __future__ import annotations

import contextlib
import json

import openai
import pytest
import raw_client

from wisp_gateway.errors import BadRequest
from wisp_gateway.limits.deadline import timeout_s


@pytest.mark.parametrize(("value", "seconds"), [("", None), ("30", 30.0), ("0.25", 0.25), ("86400", 86400.0)])
def test_the_header_is_a_number_of_seconds(value, seconds):
    assert timeout_s(value) == seconds


@pytest.mark.parametrize(
    "value", ["0", "-1", "86401", "1e3", "nan", "inf", "5s", "1 2", "0.0", "١", "1" * 5000]
)
def test_other_values_are_refused_and_name_the_header(value):
    with pytest.raises(BadRequest, match=r"x-request-timeout must be a number of seconds above 0") as caught:
        timeout_s(value)
    assert caught.value.param == "x-request-timeout"


async def begin_and_stay(pod, seen, writer):
    if seen.json.get("stream"):
        data = b'data: {"choices": []}\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(data), data))


def ask(world, path="/v1/chat/completions", timeout="0.3", **body):
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}], **body}
    return world.post(path, json=body, headers={"x-request-timeout": timeout})


def ask_until(is_begun, world, *path, **body):
    """Ask with ever more time, until a request came far enough: however slow the machine."""
    for timeout in ("0.2", "1", "5", "25"):
        answer = ask(world, *path, timeout=timeout, **body)
        if is_begun(answer):
            return answer
    raise AssertionError(f"no request came that far in 25 s: {answer.text}")


def test_a_bad_header_is_a_400_before_the_body(world):
    world.model("m", world.pod())
    answer = world.start().post(headers={"x-request-timeout": "soon"}, content=b"no json")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout"


def test_an_answer_that_takes_too_long_is_a_504_and_its_pod_is_told(world):
    pod = world.pod(begin_and_stay)
    world.model("m", pod)
    answer = ask_until(lambda _: pod.seen, world.start())
    assert answer.status_code == 504
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
    assert "s after the request (x-request-timeout), and was ended" in error["message"]
    world.until(lambda: pod.seen[0].was_cut)
    assert world.state()["running"] == 0


def test_a_wait_in_the_queue_counts(world):
    world.model("m", state="Waking")
    assert ask(world.start()).status_code == 504
    assert world.state()["waiting"] == 0


def test_in_anthropics_dialect_it_is_a_timeout_error(world):
    world.model("m", world.pod(begin_and_stay))
    answer = ask(world.start(), "/v1/messages")
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "timeout_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_that_takes_too_long_ends_in_an_error_event(world, path):
    world.model("m", world.pod(begin_and_stay))
    answer = ask_until(lambda answer: answer.status_code == 200, world.start(), path, stream=True)
    last = [line for line in answer.text.splitlines() if line.startswith("data: ")][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "timeout_error"
    assert "x-request-timeout" in error["message"]


def test_the_official_client_raises_it_in_the_middle_of_a_stream(world):
    world.model("m", world.pod(begin_and_stay))
    client, stream = world.start().openai(timeout=60), None
    for timeout in ("0.2", "1", "5", "25"):
        with contextlib.suppress(openai.InternalServerError):
            stream = world.chat(client=client, stream=True, extra_headers={"x-request-timeout": timeout})
            break
    with pytest.raises(openai.APIError, match="x-request-timeout"):
        list(stream)


def test_an_answer_in_time_is_as_without_a_deadline(world):
    world.model("m", world.pod())
    answer = ask(world.start(), timeout="3600", stream=True)
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")


def begin_to_read(world, timeout):
    """Read the head of an answer, and nothing of its body; None: it is an error."""
    client = raw_client.connect(world, receive_buffer_bytes=4096)
    client.sendall(
        raw_client.request("/v1/completions", f"x-request-timeout: {timeout}", model="m", prompt="x")
    )
    received = raw_client.read_until(client, b"\r\n\r\n")
    return client if received.startswith(b"HTTP/1.1 200 ") else None


def test_a_deadline_within_a_long_answer_cuts_it_off_and_is_counted(world, caplog):
    body = json.dumps({"choices": [], "text": "x" * 2**23}).encode()
    world.model("m", world.pod(world.does.write(world.answer(200, body))))
    world.start(write_timeout_s=600)  # else that would end it
    tries = (begin_to_read(world, timeout) for timeout in ("0.5", "2", "10", "30"))
    client = next(client for client in tries if client is not None)
    timeouts = 'wisp_gateway_requests_total{model="default/m",code="504"}'
    before = world.metric(timeouts)
    world.until(lambda: world.metric(timeouts) == before + 1)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(2**20):
            received += chunk
    assert len(received) < len(body)
    assert not caplog.records
