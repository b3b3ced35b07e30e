"""Wake and stop of models from the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from wisp_gateway.errors import ModelAsleep
from wisp_gateway.reporting.feed.errors import ForeignOrigin, OperatorAway, StillAsked, StopNotAllowed
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.registry import ModelRegistry, Slot

ACCOUNT = "page"
RETRY_S = 2
StopCall = Callable[[ModelState], Awaitable[str]]
"""Ask the operator to stop a model's pods; returns the failure, empty on success."""


class Control:
    """Wakes and stops models.

    Args:
        stop: see :data:`StopCall`; None: the operator stops none.
    """

    def __init__(self, registry: ModelRegistry, stop: StopCall | None) -> None:
        self._registry = registry
        self._stop = stop
        self._waking: dict[ModelState, asyncio.Task[Slot]] = {}

    async def wake(self, state: ModelState) -> None:
        """Wake a model as a request would: one that waits for a pod, and then asks it nothing.

        Raises:
            GatewayError: it cannot be woken now.
        """
        if state in self._waking:
            return
        state.arrive()
        waiting = self._registry.acquire_slot(state, None, entered_s=time.monotonic(), account=ACCOUNT)
        task = self._waking[state] = asyncio.ensure_future(waiting)
        task.add_done_callback(lambda task: self._end(state, task))
        await asyncio.sleep(0)
        if task.done() and not task.cancelled():
            error = task.exception()  # a request that mode Reject refuses wakes its model all the same
            if error is not None and not isinstance(error, ModelAsleep):
                raise error

    async def stop(self, state: ModelState) -> None:
        """Have the operator stop a model's pods.

        Raises:
            StopNotAllowed, StillAsked, OperatorAway: it does not.
        """
        model = state.model
        if self._stop is None or not model.can_stop:
            raise StopNotAllowed(
                f"Model {model.key} is not stopped here: `wisp up` stops models whose spec.scaling.min is 0. "
                f"On a cluster: kubectl patch inferencemodel {model.name} -n {model.namespace} --type merge "
                """-p '{"spec": {"suspend": true}}', or wait for spec.scaling.idleAfter."""
            )
        if len(state.queue):
            raise StillAsked(_still_asked(model.key, len(state.queue)))
        failure = await self._stop(state)
        if failure:
            raise OperatorAway(
                f"Model {model.key} was not stopped: {failure}. Retry; `wisp up`'s log says more.",
                retry_after_s=RETRY_S,
            )

    def close(self) -> None:
        """End the wakes that wait."""
        for task in self._waking.values():
            task.cancel()

    def _end(self, state: ModelState, task: asyncio.Task[Slot]) -> None:
        del self._waking[state]
        if not task.cancelled() and task.exception() is None:
            task.result().release()


def _still_asked(key: str, waiting: int) -> str:
    requests = "A request waits" if waiting == 1 else f"{waiting} requests wait"
    return (
        f"{requests} for model {key} and would wake it again. Stop it when none waits: all are answered, or "
        "their clients have given up."
    )


def check_origin(origin: str, host: str, *, is_allowed: bool) -> None:
    """Refuse a web page of another origin, which a browser lets send a request without asking us.

    Args:
        origin: the request's ``Origin``; empty if no page sent it.
        host: its ``Host``.
        is_allowed: whether ``--allow-origin`` names the origin.

    Raises:
        ForeignOrigin: it may not.
    """
    if origin and not is_allowed and _host_of(origin) != host:
        raise ForeignOrigin(
            f"A web page of {origin[:200]} may not wake or stop models. If it should, start the gateway with "
            "--allow-origin for it."
        )


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
