"""Read pods' ``/state`` while a page is open: starting pods often, idle ones rarely, a few at a time.

Without a page: at the end of a wake, and for ``/v1/models`` until a model's context is known. The clock and
the request are arguments. A pod that does not answer is asked ever more rarely, and keeps the details that it
gave last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from wisp_gateway.reporting.feed.pod_details import PodDetails, StartPhase, parse
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod

STARTING_S = 0.25
BUSY_S = 1.0
IDLE_S = 10.0
MAX_RETRY_S = 30.0
MAX_AT_ONCE = 16

Fetch = Callable[[str, str], Awaitable[bytes | None]]


@dataclass
class Reading:
    """The last details of one pod, and the time of the next read."""

    address: str
    details: PodDetails | None = None
    read_s: float = float("-inf")
    due_s: float = float("-inf")
    failures: int = 0
    is_under_way: bool = False


def phases_of(reading: Reading | None) -> tuple[StartPhase, ...]:
    """Return the phases that a pod reported; none if it was not read."""
    return reading.details.phases if reading is not None and reading.details is not None else ()


class PodReader:
    """Details of pods, as last read.

    Args:
        fetch: coroutine function that returns the body of ``/state`` of a model's pod at an address; None if
            the pod does not answer.
        clock: monotonic seconds.
    """

    def __init__(self, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._readings: WeakKeyDictionary[Pod, Reading] = WeakKeyDictionary()
        self._last: WeakKeyDictionary[ModelState, PodDetails] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def read_due(self, states: Iterable[ModelState]) -> None:
        """Begin to read the pods that are due, the longest overdue first."""
        free = MAX_AT_ONCE - len(self._tasks)
        now_s = self._clock()
        due = [
            (reading.due_s, number, state, pod)
            for number, (state, pod, reading) in enumerate(self._known(states))
            if reading.due_s <= now_s and not reading.is_under_way
        ]
        for _, _, state, pod in sorted(due)[: max(0, free)]:
            self._begin(state, pod)

    def read_once(self, state: ModelState) -> None:
        """Read a model's pods now, as at the end of its wake; those that drain only if none is ready."""
        for _, pod, reading in self._known([state], with_draining=not state.ready):
            if not reading.is_under_way and len(self._tasks) < MAX_AT_ONCE:
                self._begin(state, pod)

    def of_pod(self, pod: Pod) -> Reading | None:
        """Return the reading of a pod at its present address."""
        reading = self._readings.get(pod)
        return reading if reading is not None and reading.address == pod.endpoint.address else None

    def of_ready(self, state: ModelState) -> list[Reading]:
        """Return the readings of a model's ready pods."""
        readings = [self.of_pod(pod) for pod in state.pods.values() if pod.is_ready]
        return [reading for reading in readings if reading is not None and reading.details is not None]

    def of_woken(self, state: ModelState) -> list[Reading]:
        """Return the readings of a model's ready pods; of pods that drain, if none is ready any more."""
        if state.ready:
            return self.of_ready(state)
        draining = [self.of_pod(pod) for pod in state.pods.values() if pod.endpoint.draining]
        return [reading for reading in draining if reading is not None and reading.details is not None]

    def of_starting(self, state: ModelState) -> Reading | None:
        """Return the reading of the starting pod with most phases."""
        starting = [pod for pod in state.pods.values() if not pod.is_ready and not pod.endpoint.draining]
        known = [self.of_pod(pod) for pod in starting]
        readings = [reading for reading in known if reading is not None and reading.details is not None]
        return max(readings, key=lambda reading: len(phases_of(reading)), default=None)

    def last_of(self, state: ModelState) -> PodDetails | None:
        """Return the last details of a pod that had loaded the model."""
        return self._last.get(state)

    def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()

    def _known(
        self, states: Iterable[ModelState], *, with_draining: bool = False
    ) -> Iterator[tuple[ModelState, Pod, Reading]]:
        for state in states:
            for pod in state.pods.values():
                if with_draining or not pod.endpoint.draining:
                    reading = self.of_pod(pod)
                    if reading is None:
                        reading = self._readings[pod] = Reading(pod.endpoint.address)
                    yield state, pod, reading

    def _begin(self, state: ModelState, pod: Pod) -> None:
        self._readings[pod].is_under_way = True
        task = asyncio.ensure_future(self._read(state, pod, self._readings[pod]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, state: ModelState, pod: Pod, reading: Reading) -> None:
        try:
            text = await self._fetch(state.model.key, reading.address)
            details = parse(text) if text is not None else None
            now_s = self._clock()
            if details is None:
                reading.failures += 1
                reading.due_s = now_s + min(MAX_RETRY_S, STARTING_S * 2.0 ** min(reading.failures, 16))
                return
            reading.details, reading.read_s, reading.failures = details, now_s, 0
            reading.due_s = now_s + (BUSY_S if pod.running else IDLE_S if pod.is_ready else STARTING_S)
            is_outdated = pod.endpoint.draining and state.ready
            if details.ledger is not None and not is_outdated:
                self._last[state] = details
        finally:
            reading.is_under_way = False
