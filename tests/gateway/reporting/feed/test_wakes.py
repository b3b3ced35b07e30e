"""Record of wakes: how each is seen to begin and to end, with the clock of the test."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.errors import GatewayError
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.feed.documents import start_phases
from wisp_gateway.reporting.feed.pod_reader import PodReader
from wisp_gateway.reporting.feed.wakes import MAX_WAKES, WakeLog
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.request_queue import QueuedRequest

UNIX = 1_000_000.0
POD = {
    "phases": [
        {"name": "import", "seconds": 1.0, "state": "done"},
        {"name": "weights", "seconds": 2.0, "state": "done"},
    ],
    "ledger": {"weightsBytes": 1},
}


class Wakes:
    """One model, its log of wakes, and their clock."""

    def __init__(self, status="Asleep"):
        self.now_s = 100.0
        self.pods = {}  # other answers than POD's
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.model = Model("default", "m", "m", status)
        self.state = ModelState(self.model, Metrics(), lambda: self.now_s)
        self.log = WakeLog(PodReader(self.fetch, lambda: self.now_s))

    async def fetch(self, key, address):
        if address not in self.pods:
            await self.may_answer.wait()
        return json.dumps(self.pods.get(address, POD)).encode()

    def ask(self):
        """Let a request wait."""
        self.state.admit(QueuedRequest(None, self.now_s, self.now_s + 300, lambda _: None))

    def become(self, status, *others, ready=False, draining=False, reason=""):
        endpoint = Endpoint("m-1", "127.0.0.1:1", ready=ready, draining=draining)
        endpoints = ((endpoint,) if ready or draining else ()) + others
        self.state.replace(replace(self.model, state=status, endpoints=endpoints, reason=reason))

    async def observe(self, after_s=0.0):
        """Observe after a time; return the rows."""
        self.now_s += after_s
        self.log.observe([self.state], self.now_s, UNIX + self.now_s)
        for _ in range(4):
            await asyncio.sleep(0)
        return self.log.rows()


async def woken(*, is_seen_before):
    """Return wakes whose model has become ready 4.5 s after a request, not observed yet."""
    wakes = Wakes()
    await wakes.observe()
    wakes.ask()
    if is_seen_before:
        await wakes.observe(after_s=1.0)
    wakes.now_s = 104.5
    wakes.become("Ready", ready=True)
    return wakes


def test_a_wake_runs_from_its_first_request_to_the_ready_pod_with_the_pods_phases():
    async def run():
        wakes = Wakes()
        assert await wakes.observe() == []
        wakes.ask()
        (row,) = await wakes.observe(after_s=1.0)
        assert (row["outcome"], row["seconds"], row["began"]) == ("running", 1.0, UNIX + 100.0)
        assert row["phases"] == [{"name": "schedule", "seconds": 1.0}]
        wakes.now_s += 3.5
        wakes.become("Ready", ready=True)
        await wakes.observe(after_s=0.5)
        return await wakes.observe(after_s=1.0)

    (row,) = asyncio.run(run())
    assert (row["outcome"], row["seconds"]) == ("ready", 4.5)  # to the ready pod, not to the observation
    assert row["phases"] == [
        {"name": "schedule", "seconds": 1.5},
        {"name": "import", "seconds": 1.0},
        {"name": "weights", "seconds": 2.0},
    ]


def test_a_wake_that_is_over_before_the_next_observation_is_recorded_once():
    async def run():
        wakes = Wakes()
        await wakes.observe()
        wakes.ask()
        wakes.now_s += 0.25
        wakes.become("Ready", ready=True)
        return [await wakes.observe(after_s=0.5) for _ in range(4)][-1]

    (row,) = asyncio.run(run())
    assert (row["outcome"], row["seconds"], row["began"]) == ("ready", 0.25, UNIX + 100.0)


@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_wake_whose_pod_is_stopped_before_the_next_observation_was_one(is_seen_before):
    async def run():
        wakes = await woken(is_seen_before=is_seen_before)
        wakes.now_s += 0.17
        wakes.become("Asleep", draining=True)
        return [await wakes.observe(after_s=0.5) for _ in range(3)][-1]

    (row,) = asyncio.run(run())
    assert (row["outcome"], row["seconds"]) == ("ready", 4.5)
    assert [phase["name"] for phase in row["phases"]] == ["schedule", "import", "weights"]


def test_the_phases_of_a_wake_are_those_of_its_pod_not_of_one_that_still_drains():
    old = Endpoint("m-0", "127.0.0.1:9", ready=False, draining=True)

    async def run():
        wakes = Wakes()
        wakes.pods["127.0.0.1:9"] = {"phases": [{"name": "weights", "seconds": 40.0, "state": "done"}]}
        await wakes.observe()
        wakes.become("Asleep", old)
        wakes.ask()
        await wakes.observe(after_s=1.0)
        wakes.now_s += 3.0
        wakes.become("Ready", old, ready=True)
        wakes.may_answer.clear()
        await wakes.observe()
        await wakes.observe(after_s=1.0)
        wakes.may_answer.set()
        await wakes.observe()
        return await wakes.observe(after_s=1.0)

    (row,) = asyncio.run(run())
    assert [phase["seconds"] for phase in row["phases"]] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_wake_right_after_one_that_was_stopped_is_another(is_seen_before):
    async def run():
        wakes = await woken(is_seen_before=is_seen_before)
        wakes.become("Asleep", draining=True)
        wakes.now_s += 0.2
        wakes.ask()
        return [await wakes.observe(after_s=0.5) for _ in range(3)][-1]

    first, second = asyncio.run(run())
    assert (first["outcome"], first["seconds"]) == ("ready", 4.5)
    assert [phase["name"] for phase in first["phases"]] == ["schedule", "import", "weights"]
    assert (second["outcome"], second["began"]) == ("running", pytest.approx(UNIX + 104.7))


def test_a_wake_that_is_over_while_the_last_ones_pod_is_read_is_recorded():
    async def run():
        wakes = Wakes()
        await wakes.observe()
        wakes.ask()
        wakes.become("Ready", ready=True)
        wakes.log.observe([wakes.state], wakes.now_s, UNIX)  # its pod has not answered yet
        wakes.become("Asleep")
        wakes.ask()
        wakes.now_s += 3.5
        wakes.become("Ready", ready=True)
        return [await wakes.observe(after_s=0.5) for _ in range(4)][-1]

    first, second = asyncio.run(run())
    assert (first["seconds"], first["phases"]) == (0.0, [])
    assert (second["outcome"], second["seconds"]) == ("ready", 3.5)


def test_a_wake_that_is_abandoned_after_one_that_was_ready_is_no_success():
    async def run():
        wakes = Wakes()
        await wakes.observe()
        wakes.ask()
        wakes.now_s += 4.5
        wakes.become("Ready", ready=True)
        await wakes.observe(after_s=0.5)
        await wakes.observe(after_s=0.5)
        wakes.become("Waking")
        await wakes.observe(after_s=1.0)
        wakes.become("Asleep")
        return [await wakes.observe(after_s=1.0) for _ in range(3)][-1]

    assert [row["outcome"] for row in asyncio.run(run())] == ["ready", "abandoned"]


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [("Failed", "DoesNotFit", ("failed", "DoesNotFit")), ("Asleep", "", ("abandoned", ""))],
)
def test_a_wake_that_brings_no_pod_says_how_it_ended(status, reason, outcome):
    async def run():
        wakes = Wakes("Waking")
        await wakes.observe()
        wakes.become(status, reason=reason)
        return [await wakes.observe(after_s=1.0) for _ in range(3)][-1]

    (row,) = asyncio.run(run())
    assert (row["outcome"], row["reason"]) == outcome
    assert row["seconds"] == 1.0


def test_a_wake_after_one_that_failed_is_another():
    async def run():
        wakes = Wakes()
        await wakes.observe()
        wakes.ask()
        await wakes.observe(after_s=1.0)
        wakes.become("Failed", reason="CrashBackOff")
        await wakes.observe(after_s=1.0)
        wakes.become("Waking")
        return await wakes.observe(after_s=5.0)

    first, second = asyncio.run(run())
    assert (first["outcome"], second["outcome"]) == ("failed", "running")
    assert second["began"] > first["began"]
    assert sum(phase["seconds"] for phase in second["phases"]) <= second["seconds"]


def test_the_last_wakes_are_kept_and_those_of_deleted_models_end():
    async def run():
        wakes = Wakes("Waking")
        for _ in range(MAX_WAKES + 5):
            wakes.become("Waking")
            await wakes.observe(after_s=1.0)
            wakes.become("Asleep")
            await wakes.observe(after_s=1.0)
        assert len(wakes.log.rows()) == MAX_WAKES
        wakes.become("Waking")
        await wakes.observe(after_s=1.0)
        wakes.state.close(GatewayError("gone"))
        rows = wakes.log.observe([], wakes.now_s + 1.0, UNIX)
        assert not wakes.log.is_any_running
        return rows

    (row,) = asyncio.run(run())  # pages have it as one that runs
    assert (row["outcome"], row["seconds"]) == ("abandoned", 1.0)


def test_the_time_before_a_pod_began_stays_while_its_phases_run():
    async def run():
        wakes = Wakes()
        wakes.ask()
        endpoint = Endpoint("m-1", "127.0.0.1:1", ready=False, draining=False)
        wakes.state.replace(replace(wakes.model, state="Waking", endpoints=(endpoint,)))
        wakes.now_s += 5.0  # 2 s until the pod began, then POD's 3 s
        wakes.log._pods.read_due([wakes.state])
        await asyncio.sleep(0.01)
        wakes.now_s += 0.2
        return start_phases(wakes.state, wakes.log._pods, wakes.now_s)

    assert [(phase["name"], phase["seconds"]) for phase in asyncio.run(run())] == [
        ("schedule", 2.0),
        ("import", 1.0),
        ("weights", 2.0),
    ]
