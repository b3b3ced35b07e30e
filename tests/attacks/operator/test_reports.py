"""Demand reports, and bytes on the operator's port (B8, A4)."""

import json

import pytest
from attack import attack
from endless import BODIES, HEADS
from json_bodies import bodies
from neighbour import MIB
from wire import post

WAITS = {"waiting": 1, "running": 0, "arrivals": 1, "idleSeconds": 0.0}
MAX_BYTES = 64 * MIB
"""The operator's parser drops what it must not keep and reads on; memory and time are what counts."""


def report(**fields):
    return json.dumps({"gateway": "evil", "models": {"neighbour/good": {**WAITS, **fields}}}).encode()


def many(number):
    return json.dumps({"gateway": "evil", "models": {f"a/m{n}": WAITS for n in range(number)}}).encode()


REPORTS = {
    "a number without an end": report().replace(b'"waiting": 1', b'"waiting": 1e400'),
    "not a number": report().replace(b'"waiting": 1', b'"waiting": NaN'),
    "an integer of 4,000 digits": report().replace(b'"waiting": 1', b'"waiting": ' + b"9" * 4000),
    "a negative number": report(waiting=-1_000_000),
    "a list": report(waiting=[]),
    "text": report(waiting="all of it"),
    "no finite age": report().replace(b"0.0", b"-1e400"),
    "models as a list": b'{"gateway":"evil","models":[]}',
    "a model of null": b'{"gateway":"evil","models":{"a/b":null}}',
    "a name of a megabyte": json.dumps({"gateway": "x" * MIB, "models": {}}).encode(),
    "a model's name of a megabyte": json.dumps({"gateway": "e", "models": {"x" * MIB: WAITS}}).encode(),
    "control characters": json.dumps({"gateway": "\x00\n\x1b[2J", "models": {"\n/\x00": WAITS}}).encode(),
    "100,000 models": many(100_000),
    "depth": b"[" * 1_000_000,
    "not UTF-8": b'{"gateway":"\xff"}',
} | {f"eight megabytes of {name}": make for name, make in bodies(8 * MIB).items()}


@pytest.mark.parametrize("body", REPORTS.values(), ids=REPORTS)
@attack("B8")
def test_a_report_that_is_none(target, body):
    body = body() if callable(body) else body
    with target.connect() as client:
        assert client.send(post("/demand", body)).answer().status in (0, 204, 400, 401, 413)


@attack("B8")
def test_a_thousand_gateways_that_are_none(target):
    for number in range(1000):
        with target.connect() as client:
            body = json.dumps({"gateway": f"evil-{number}", "models": {f"a/m{number}": WAITS}}).encode()
            assert client.send(post("/demand", body)).answer().status in (204, 400, 401, 429)


@pytest.mark.parametrize(("head", "chunk"), HEADS.values(), ids=HEADS)
@attack("A4")
def test_a_head_without_an_end(target, head, chunk):
    with target.connect() as client:
        client.flood(head, chunk, max_bytes=MAX_BYTES, max_s=4)


@pytest.mark.parametrize(("head", "chunk"), BODIES.values(), ids=BODIES)
@attack("A4")
def test_a_report_without_an_end(target, head, chunk):
    with target.connect() as client:
        start = b"POST /demand HTTP/1.1\r\nhost: x\r\n"
        client.flood(start + head, chunk, max_bytes=MAX_BYTES, max_s=4)


@attack("B8")
def test_two_hundred_reports_half_sent(target):
    clients = [target.connect().send(post("/demand", b"{", length=1000)) for _ in range(200)]
    assert len(clients) == 200
