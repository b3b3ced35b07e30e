"""Mutated requests and clients that leave, against the real server; tests/bench/fuzz has a million."""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[4] / "tests/bench/fuzz"))
from answer_checks import fault_of
from connection import Answer
from crowds import idle_connections, leavers, slow_readers
from fuzz import Run, leaks
from mutations import LEAVES, Case, case_of
from tally import KNOWN, Sample, slope_kib
from target import Footprint, served

COUNT = int(os.environ.get("WISP_TEST_REQUESTS", "250"))
JSON, EVENTS = {b"content-type": b"application/json"}, {b"content-type": b"text/event-stream; charset=utf-8"}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ERROR = b'{"error": {"message": "No.", "type": "invalid_request_error", "param": null, "code": null}}'
ANTHROPIC = b'{"type": "error", "error": {"type": "not_found_error", "message": "No."}, "request_id": "r"}'


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with served(tmp_path_factory.mktemp("fuzz")) as target:
        yield target


def test_mutated_requests_are_answered_or_refused_and_leave_nothing_behind(target):
    before = target.footprint()
    tally = asyncio.run(Run(target, seed=17, count=COUNT, every=COUNT).go(connections=8))
    assert tally.faults == []
    assert tally.samples[-1].requests == COUNT
    assert {status for _, status in tally.answers} >= {200, 400, 404}
    assert leaks(target, tally, before) == []


def test_clients_that_read_slowly_stay_idle_or_leave_hold_nothing(target):
    async def crowds():
        return [
            await slow_readers(target, 3, 1),
            await idle_connections(target, 20, 0.1),
            *await leavers(target, 1, ["/v1/responses", "/v1/messages", "/v1/embeddings"]),
        ]

    for row in asyncio.run(crowds()):
        assert row["files after"] <= row["files before"] + 4, row
        assert row.get("held KV blocks", 0) == row.get("running", 0) == row.get("waiting", 0) == 0, row


def test_requests_follow_from_their_numbers_and_are_of_every_kind():
    cases = [case_of(17, number, "resp_1") for number in range(3000)]
    assert cases == [case_of(17, number, "resp_1") for number in range(3000)]
    assert cases[:50] != [case_of(18, number, "resp_1") for number in range(50)]
    assert {case.stage for case in cases} == {"stays", *LEAVES}
    assert {case.path for case in cases} >= KNOWN
    assert len({(case.head, case.body) for case in cases}) > 2500
    assert Counter(case.closes for case in cases)[True] > 60
    assert max(len(case.body) for case in cases) < 1 << 20


@pytest.mark.parametrize(
    ("path", "status", "headers", "body", "fault"),
    [
        (CHAT, 200, JSON, b'{"object": "chat.completion"}', ""),
        (CHAT, 200, JSON, b'{"object": "list"}', "an answer without its 'object'"),
        (CHAT, 200, JSON, b'{"object": NaN}', "a body that does not parse"),
        (CHAT, 200, EVENTS, b"data: {}\n\ndata: [DONE]\n\n", ""),
        (CHAT, 200, EVENTS, b"data: {}\n\n", "a stream without its end"),
        (CHAT, 200, EVENTS, b"data: [DONE]\n\ndata", "bytes behind the last event"),
        (MESSAGES, 200, EVENTS, b'event: message_stop\ndata: {"type": "message_stop"}\n\n', ""),
        (MESSAGES, 200, EVENTS, b'event: ping\ndata: {"type": "ping"}\n\n', "a stream that ends with ping"),
        (CHAT, 400, JSON, ERROR, ""),
        (MESSAGES, 400, JSON, ERROR, "no error of its dialect"),
        (MESSAGES, 404, JSON, ANTHROPIC, ""),
        (CHAT, 404, JSON, ANTHROPIC, "Anthropic's error of another path"),
        (CHAT, 500, JSON, ERROR, "status 500"),
        (CHAT, 503, JSON, ERROR, "status 503"),
        (
            CHAT,
            503,
            JSON | {b"retry-after": b"5"},
            ERROR.replace(b'"code": null', b'"code": "queue_timeout"'),
            "",
        ),
        (CHAT, 302, JSON, b"", "status 302"),
    ],
)
def test_a_wrong_answer_is_found(path, status, headers, body, fault):
    answer = Answer(status, headers, bytearray(body), is_complete=True)
    result = fault_of(Case(path, "POST", b"", b""), answer)
    assert result.startswith(fault)
    assert bool(result) == bool(fault)


def test_an_answer_that_breaks_off_is_a_fault_unless_its_client_left():
    assert fault_of(Case(CHAT, "POST", b"", b""), Answer())
    assert not fault_of(Case(CHAT, "POST", b"", b"", "mid-body"), Answer())


def test_the_slope_of_memory_leaves_the_warm_up_out():
    held = [(0, 100), (200, 900), (600, 904), (1000, 908)]
    samples = [Sample(requests, 0.0, Footprint(kib, 1, 1)) for requests, kib in held]
    assert slope_kib(samples) == 10.0
