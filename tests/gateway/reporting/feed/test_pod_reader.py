"""Reading pods' ``/state``: which pods are asked when, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.feed import pod_reader
from wisp_gateway.reporting.feed.pod_details import parse
from wisp_gateway.reporting.feed.pod_reader import PodReader
from wisp_gateway.routing.model_state import ModelState

LEDGER = {"weightsBytes": 7, "kvCacheBytes": 2, "availableBytes": 10, "maxContext": 64}
STATE = {"ledger": LEDGER, "load": {"kvBlocksUsed": 1, "kvBlocksTotal": 4}}


def model(name="m", *, pods=1, ready=True, address="127.0.0.1:{}"):
    endpoints = [Endpoint(f"{name}-{n}", address.format(n), ready=ready, draining=False) for n in range(pods)]
    return Model("default", name, name, "Ready", endpoints=tuple(endpoints))


def state_of(given):
    state = ModelState(given, Metrics(), lambda: 0.0)
    state.replace(given)
    return state


class Pods:
    """Pods' answers, and a reader of them with a clock that stands still until it is set."""

    def __init__(self, answer=STATE):
        self.now_s = 0.0
        self.answer = None if answer is None else json.dumps(answer).encode()
        self.asked: list[str] = []
        self.reader = PodReader(self.fetch, lambda: self.now_s)

    async def fetch(self, key, address):
        self.asked.append(address)
        return self.answer

    async def reads(self, states, *times_s):
        """Return how often pods are asked by each of these times."""
        counts = []
        for self.now_s in times_s:
            self.reader.read_due(states)
            for _ in range(3):
                await asyncio.sleep(0)
            counts.append(len(self.asked))
        return counts


@pytest.mark.parametrize(
    ("ready", "running", "counts"),
    [
        (False, 0, [1, 2, 3, 4, 5]),  # starting: at each poll
        (True, 1, [1, 1, 1, 1, 2]),  # busy: each second
        (True, 0, [1, 1, 1, 1, 1]),  # idle: every ten
    ],
)
def test_a_pod_is_asked_as_often_as_it_changes(ready, running, counts):
    async def run():
        pods, state = Pods(), state_of(model(ready=ready))
        next(iter(state.pods.values())).running = running
        assert await pods.reads([state], 0.0, 0.25, 0.5, 0.75, 1.0) == counts
        assert (await pods.reads([state], 11.0))[0] == counts[-1] + 1

    asyncio.run(run())


def test_a_pod_that_does_not_answer_is_asked_ever_more_rarely_and_keeps_its_details():
    async def run():
        pods, state = Pods(), state_of(model())
        await pods.reads([state], 0.0)
        pods.answer = None
        counts = await pods.reads([state], *(10.0 + 0.25 * poll for poll in range(400)))
        assert 5 <= counts[-1] <= 14  # of 400 polls in 100 s
        assert pods.reader.last_of(state).context == 64

    asyncio.run(run())


def test_many_pods_are_asked_a_few_at_a_time_each_in_its_turn():
    async def run():
        pods, state = Pods(), state_of(model(pods=50))
        counts = await pods.reads([state], 0.0, 0.25, 0.5, 0.75)
        assert counts == [pod_reader.MAX_AT_ONCE, 2 * pod_reader.MAX_AT_ONCE, 3 * pod_reader.MAX_AT_ONCE, 50]
        assert len(set(pods.asked)) == 50

    asyncio.run(run())


def test_one_request_to_a_pod_runs_at_a_time():
    async def run():
        pods, state, gate = Pods(), state_of(model(ready=False)), asyncio.Event()

        async def slow(key, address):
            pods.asked.append(address)
            await gate.wait()
            return

        pods.reader = PodReader(slow, lambda: pods.now_s)
        assert await pods.reads([state], 0.0, 1.0, 2.0) == [1, 1, 1]
        pods.reader.close()

    asyncio.run(run())


def test_a_pod_that_drains_beside_a_ready_one_does_not_have_the_last_word():
    async def run():
        pods, state, may_answer = Pods(), state_of(model(pods=2)), asyncio.Event()

        async def answer(key, address):
            if address == "127.0.0.1:0":
                await may_answer.wait()
                return json.dumps({"ledger": LEDGER | {"maxContext": 8192}}).encode()
            return pods.answer

        pods.reader = PodReader(answer, lambda: pods.now_s)
        await pods.reads([state], 0.0)
        old, new = state.model.endpoints
        state.replace(replace(state.model, endpoints=(replace(old, ready=False, draining=True), new)))
        may_answer.set()
        await pods.reads([state], 0.1)
        assert pods.reader.of_pod(state.pods[old.id]).details.context == 8192
        assert pods.reader.last_of(state).context == 64

    asyncio.run(run())


def test_another_process_at_the_place_of_a_pod_has_no_details_yet():
    async def run():
        pods, state = Pods(), state_of(model())
        await pods.reads([state], 0.0)
        assert pods.reader.of_ready(state)
        state.replace(model(address="127.0.0.2:{}"))
        assert not pods.reader.of_ready(state)
        assert pods.reader.last_of(state).ledger == (
            ("weights", 7),
            ("kv", 2),
            ("workspace", 0),
            ("context", 0),
            ("free", 1),
        )

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        {"ledger": {"weightsBytes": "7"}},
        {"ledger": {"weightsBytes": 1 << 54}},
        {"ledger": {"weightsBytes": float("nan")}},
        {"ledger": {"kvCacheBytes": True}},
        {"ledger": [1]},
        {"ledger": {"gpu": {"name": "a\nb", "memoryBytes": 1}}},
        {"ledger": {"gpu": {"memoryBytes": 1}}},
        {"load": [1]},
        {"phases": [{"name": "<script>", "seconds": 1}]},
        {"phases": [{"name": "weights", "seconds": -5}]},
        {"phases": [{"seconds": 1}]},
        {"phases": [{"name": "weights"}] * 33},
        {"phases": 3},
        {"defaults": {"temperature": float("inf")}},
        {"defaults": "x"},
    ],
)
def test_a_state_that_cannot_be_true_counts_as_none(change):
    assert parse(json.dumps(STATE | change).encode()) is None


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"[" * 100_000, b"1", b"\xff"])
def test_a_text_that_is_no_state_counts_as_none(text):
    assert parse(text) is None


def test_a_pod_that_has_just_begun_has_no_ledger():
    details = parse(json.dumps({"status": "starting", "phases": [], "ledger": None, "load": {}}).encode())
    assert (details.ledger, details.gpu, details.context, details.phases) == (None, None, None, ())
