"""Usage of an answer: a pod's report reaches the gateway, and never its client."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from wisp_gateway.inbound.usage import Usage
from wisp_gateway.upstream import usage_report

REPORT = {
    "promptTokens": 31,
    "cachedTokens": 16,
    "completionTokens": 12,
    "finish": "stop",
    "firstTokenSeconds": 0.5,
    "perTokenSeconds": 0.004,
}
TEXT = json.dumps(REPORT).encode()
STREAMED = {"model": "m", "messages": [], "stream": True}
ENDS = b"data: [DONE]\n\n"


def finished(world) -> list[dict]:
    """Return the requests that ended, as the gateway reports them."""
    return world.http.get(f"{world.url}/state/history").json()["requests"]


def ask(world, handler, **more):
    world.model("m", world.pod(handler))
    got = world.start().post(json={"model": "m", "messages": [], **more})
    return got, world.until(lambda: finished(world))[0]


def test_the_report_in_an_answers_head_is_kept_and_not_passed_on(world):
    body = b'{"choices": []}'
    pod = world.does.write(world.answer(200, body, f"x-wisp-usage: {TEXT.decode()}"))
    got, usage = ask(world, pod)
    assert got.content == body
    assert not [name for name in got.headers if name.startswith("x-wisp")]
    assert (usage["promptTokens"], usage["cachedTokens"], usage["completionTokens"]) == (31, 16, 12)
    assert (usage["finish"], usage["perTokenSeconds"]) == ("stop", 0.004)
    assert usage["firstTokenSeconds"] >= 0.5  # the time in the gateway comes on top


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
def test_the_report_at_a_streams_end_is_kept_and_cut_off_however_it_is_split(world, chunk_bytes):
    events = world.event("w0 ") + world.event("", "stop") + ENDS
    text = events + usage_report.COMMENT + TEXT
    chunks = [world.framed(text[start : start + chunk_bytes]) for start in range(0, len(text), chunk_bytes)]
    got, usage = ask(world, world.does.write(world.STREAM_HEAD, *chunks, b"0\r\n\r\n"), stream=True)
    assert got.content == events
    assert usage["completionTokens"] == 12


@pytest.mark.parametrize("event_bytes", [60_000, 65_536, 70_000, 200_000])
@pytest.mark.parametrize("chunk_bytes", [50_000, 1_000_000])
def test_the_report_behind_a_large_event_is_kept_and_cut_off(world, event_bytes, chunk_bytes):
    events = world.event("w" * event_bytes) + ENDS
    text = events + usage_report.COMMENT + TEXT
    chunks = [world.framed(text[start : start + chunk_bytes]) for start in range(0, len(text), chunk_bytes)]
    got, usage = ask(world, world.does.write(world.STREAM_HEAD, *chunks, b"0\r\n\r\n"), stream=True)
    assert got.content == events
    assert usage["completionTokens"] == 12


def test_the_use_of_an_answer_that_is_too_long_to_pass_on_counts(world):
    body = b'{"choices": "' + b"x" * 9000 + b'"}'
    world.model("m", world.pod(world.does.write(world.answer(200, body, f"x-wisp-usage: {TEXT.decode()}"))))
    got = world.start(max_answer_bytes=4000).post(json={"model": "m", "messages": []})
    assert got.status_code == 502
    assert world.until(lambda: finished(world))[0]["completionTokens"] == 12


def test_the_pod_is_asked_and_a_client_cannot_ask(world):
    pod = world.pod()
    world.model("m", pod)
    assert world.start().post(headers={"x-wisp-usage": "client"}).status_code == 200
    assert pod.seen[0].headers["x-wisp-usage"] == "1"


def test_a_pods_refusal_within_a_held_stream_counts_by_its_own_status(world):
    async def refuse_late(pod, seen, writer):
        while not began.is_set():
            await asyncio.sleep(0.01)
        writer.write(world.answer(400, b'{"error": {"message": "no", "code": "bad"}}'))

    began = threading.Event()
    world.model("m", world.pod(refuse_late), coldStart={"heartbeatSeconds": 0.05})
    world.start()
    with world.http.stream("POST", world.url + "/v1/chat/completions", json=STREAMED) as got:
        lines = got.iter_lines()
        assert next(lines).startswith(":")
        began.set()
        assert any('"bad"' in line for line in lines)
    assert world.until(lambda: finished(world))[0]["status"] == 400


@pytest.mark.parametrize("comment", [b": wisp-usage", b": other", b": wisp-usageX {}"])
def test_another_partial_line_at_the_end_is_the_clients(world, comment):
    text = world.event("w0 ") + comment
    got, usage = ask(
        world, world.does.write(world.STREAM_HEAD, world.framed(text), b"0\r\n\r\n"), stream=True
    )
    assert (got.content, usage["promptTokens"]) == (text, None)


@pytest.mark.parametrize(
    "change",
    [
        {"promptTokens": -1},
        {"promptTokens": True},
        {"completionTokens": 10**9},
        {"completionTokens": "12"},
        {"finish": "a\nb"},
        {"finish": None},
        {"firstTokenSeconds": float("nan")},
        {"perTokenSeconds": float("inf")},
        {"perTokenSeconds": -0.1},
        {"perTokenSeconds": 2e6},
    ],
)
def test_a_report_that_cannot_be_true_counts_as_none(change):
    assert usage_report.parse(json.dumps(REPORT | change).encode(), 0.0) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"1", b"{}", b"[" * 100_000, b"\xff"])
def test_a_text_that_is_no_report_counts_as_none(text):
    assert usage_report.parse(text, 0.0) is None


def test_times_may_be_unknown_and_the_first_includes_the_gateways():
    text = json.dumps(REPORT | {"perTokenSeconds": None}).encode()
    assert usage_report.parse(text, 2.0) == Usage(31, 16, 12, "stop", 2.5, None)
