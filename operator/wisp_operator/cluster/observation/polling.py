"""Poll the ``/state`` of pods: often while they start, rarely while they serve.

A poll is a task of its own, and a namespace has a bounded number of them at once: pods that are slow or
answer what they must not delay the polls of their own namespace, and end nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.core.runtime_state import RuntimeState

log = logging.getLogger(__name__)

PERIOD_S = 0.25
STARTING_S = 0.5
READY_S = 2.0
MAX_CONCURRENT_PER_NAMESPACE = 16


@dataclass(eq=False)
class _Pod:
    key: str
    address: str
    period_s: float
    due: float = 0.0
    state: RuntimeState | None = None
    is_polled: bool = False

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]


class Poller:
    """The last ``/state`` of every pod that runs."""

    def __init__(self, changed: Callable[[str], None], token_of: Callable[[str], str] = lambda _: "") -> None:
        """Poll nothing yet.

        Args:
            changed: callback, given the model's key whenever a pod's start has advanced.
            token_of: the token that the pods of a model ask for, by the model's key.
        """
        self._token_of = token_of
        self._changed = changed
        self._pods: dict[str, dict[str, _Pod]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[str] = Counter()

    def set_pods(self, key: str, pods: Mapping[str, tuple[str, bool]]) -> None:
        """Poll exactly these pods of a model from now on: by name, the address and whether it is ready."""
        known = self._pods.pop(key, {})
        current = {name: known.get(name) or _Pod(key, "", STARTING_S) for name in pods}
        for name, (address, is_ready) in pods.items():
            current[name].address = address
            current[name].period_s = READY_S if is_ready else STARTING_S
        if current:
            self._pods[key] = current

    def states(self, key: str) -> dict[str, RuntimeState]:
        """Last ``/state`` of each pod of a model, by name."""
        return {name: pod.state for name, pod in self._pods.get(key, {}).items() if pod.state}

    async def run(self) -> None:
        """Poll until cancelled."""
        client = RuntimeClient()
        try:
            while True:
                self._start_due(client, time.monotonic())
                await asyncio.sleep(PERIOD_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await client.close()

    def _start_due(self, client: RuntimeClient, now: float) -> None:
        pods = [pod for pods in self._pods.values() for pod in pods.values()]
        due = [pod for pod in pods if pod.address and pod.due <= now and not pod.is_polled]
        for pod in sorted(due, key=lambda pod: pod.due):  # those that waited longest first
            if self._in_flight[pod.namespace] >= MAX_CONCURRENT_PER_NAMESPACE:
                continue
            self._in_flight[pod.namespace] += 1
            pod.is_polled, pod.due = True, now + pod.period_s
            task = asyncio.create_task(self._poll(client, pod), name=f"poll of {pod.key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _poll(self, client: RuntimeClient, pod: _Pod) -> None:
        try:
            state = await client.state(pod.address, self._token_of(pod.key))
            if state is None:
                return
            has_advanced = pod.state is None or state.stage != pod.state.stage
            pod.state = state
            if has_advanced:
                self._changed(pod.key)
        except Exception:
            log.exception("polling a pod of %s at %s failed; it is polled again", pod.key, pod.address)
        finally:
            pod.is_polled = False
            self._in_flight[pod.namespace] -= 1
            if not self._in_flight[pod.namespace]:
                del self._in_flight[pod.namespace]
