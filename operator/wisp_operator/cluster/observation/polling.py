"""Poll the ``/state`` of pods: often while they start, rarely while they serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wisp_operator.core.runtime_client import RuntimeClient

PERIOD_S = 0.25
STARTING_S = 0.5
READY_S = 2.0
MAX_CONCURRENT = 32


@dataclass
class _Pod:
    key: str
    address: str
    period_s: float
    due: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)


class Poller:
    """The last ``/state`` of every pod that runs."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        """``changed`` is called with the model's key whenever a pod's start has advanced."""
        self._changed = changed
        self._pods: dict[tuple[str, str], _Pod] = {}
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT)

    def set_pods(self, key: str, pods: Mapping[str, tuple[str, bool]]) -> None:
        """Poll exactly these pods of a model from now on: by name, the address and whether it is ready."""
        for known in [name for name in self._pods if name[0] == key and name[1] not in pods]:
            del self._pods[known]
        for name, (address, is_ready) in pods.items():
            pod = self._pods.setdefault((key, name), _Pod(key, address, STARTING_S))
            pod.address, pod.period_s = address, READY_S if is_ready else STARTING_S

    def states(self, key: str) -> dict[str, Mapping[str, Any]]:
        """Last ``/state`` of each pod of a model, by name."""
        return {name: pod.state for (owner, name), pod in self._pods.items() if owner == key and pod.state}

    async def run(self) -> None:
        """Poll until cancelled."""
        client = RuntimeClient()
        try:
            while True:
                now = time.monotonic()
                due = [pod for pod in self._pods.values() if pod.address and pod.due <= now]
                for pod in due:
                    pod.due = now + pod.period_s
                await asyncio.gather(*(self._poll(client, pod) for pod in due))
                await asyncio.sleep(PERIOD_S)
        finally:
            await client.close()

    async def _poll(self, client: RuntimeClient, pod: _Pod) -> None:
        async with self._semaphore:
            state = await client.state(pod.address)
        if state is None:
            return
        has_advanced = _stage(state) != _stage(pod.state)
        pod.state = state
        if has_advanced:
            self._changed(pod.key)


def _stage(state: Mapping[str, Any]) -> tuple[Any, ...]:
    phases = [(phase.get("name"), phase.get("state")) for phase in state.get("phases", ())]
    return state.get("status"), tuple(phases)
