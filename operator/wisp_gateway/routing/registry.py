"""Registry of all models: finds a request's model, acquires a slot at one of its pods, releases it.

Adds the clock and the futures to :mod:`.request_queue` and :mod:`.load_balancer`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from wisp_gateway.discovery.key_digests import NORMAL
from wisp_gateway.discovery.snapshot import Endpoint, Model, Snapshot
from wisp_gateway.errors import GatewayError, ModelNotFound
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.prompt import Prompt
from wisp_gateway.routing.request_queue import QueuedRequest
from wisp_names.bare_names import BareNames, Claim

NO_OPERATOR = ", and no operator takes this gateway's reports, so that nothing wakes it (the log says why)"


class Slot:
    """A request's slots at a pod; leaving the ``with`` block releases them."""

    def __init__(self, state: ModelState, pod: Pod, sequences: int, prompt: Prompt | None = None) -> None:
        self.pod = pod
        self.endpoint: Endpoint = pod.endpoint
        self._state: ModelState | None = state
        self._began_s = time.monotonic()
        self._sequences = sequences
        self._slots = state.acquire(pod, sequences)
        self._pending_bytes = state.assign(pod, prompt) if prompt is not None else 0
        pod.pending_bytes += self._pending_bytes

    def prompt_computed(self) -> None:
        """Count the prompt as computed: the answer has begun. A second call does nothing."""
        self.pod.pending_bytes -= self._pending_bytes
        self._pending_bytes = 0

    def release(self) -> None:
        """Release the slot; a second call does nothing."""
        self.prompt_computed()
        state, self._state = self._state, None
        if state is not None:
            state.release(self.pod, self._slots, self._sequences, time.monotonic() - self._began_s)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ModelRegistry:
    """Routing state of all models, updated from snapshots.

    Args:
        on_wait: callback with the model's state, whenever a request is queued or refused, or a pod has broken
            a connection.

    Attributes:
        revision: number of updates that changed a model.
        is_operator_away: reader of whether nobody takes the gateway's reports of demand.
    """

    def __init__(self, metrics: Metrics, on_wait: Callable[[ModelState], None]) -> None:
        self.revision = 0
        self.is_operator_away: Callable[[], bool] = lambda: False
        self._states: dict[str, ModelState] = {}
        self._names = BareNames()
        self._metrics = metrics
        self._on_wait = on_wait

    def states(self) -> list[ModelState]:
        """All models' states, in the snapshot's order."""
        return list(self._states.values())

    def update(self, snapshot: Snapshot) -> None:
        """Replace the models by those of a new snapshot; those that are the same objects cost nothing."""
        claims: dict[str, Claim | None] = dict.fromkeys(self._states.keys() - snapshot.keys())
        for key in claims:
            gone = ModelNotFound(f"Model {key} was deleted while the request waited.")
            self._states.pop(key).close(gone)
        for key, model in snapshot.items():
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = ModelState(model, self._metrics, time.monotonic)
            elif state.model is model:
                continue
            claims[key] = _claim(model)
            state.replace(model)
        self.revision += bool(claims)
        if None in claims.values():
            self._metrics.keep_only(set(self._states))
        self._names.apply(claims, time.monotonic())

    def find(self, name: str) -> ModelState | None:
        """Find the model that a client means by ``namespace/name`` or a bare name; None: there is none."""
        state = self._states.get(name)
        if state is not None:
            return state
        return self._states.get(self._names.holder(name) or "")

    def public_name(self, state: ModelState) -> str:
        """The id in ``/v1/models``: the served name if the model holds it, else ``namespace/name``."""
        served = state.model.served_name
        return served if self._names.holder(served) == state.model.key else state.model.key

    def find_pod(self, tag: str | None) -> tuple[ModelState, Pod] | None:
        """Find the pod with a tag, and its model; None: there is none."""
        for state in self._states.values() if tag is not None else ():
            pod = state.pod_of_tag(tag)
            if pod is not None:
                return state, pod
        return None

    def mark_unhealthy(self, state: ModelState, slot: Slot) -> None:
        """Release a slot at a pod that broke its connection; the pod gets no request until it answers."""
        slot.pod.mark_unhealthy()
        slot.release()
        self._on_wait(state)

    def _expire(self, state: ModelState, deadline_s: float) -> None:
        is_nobody_there = not state.ready and self.is_operator_away()
        state.expire(deadline_s, NO_OPERATOR if is_nobody_there else "")

    async def acquire_slot(
        self,
        state: ModelState,
        prompt: Prompt | None,
        *,
        entered_s: float,
        is_retry: bool = False,
        sequences: int = 1,
        priority: str = NORMAL,
        account: str = "",
        trace: str = "",
        bound_to: str | None = None,
        on_admit: Callable[[], None] = lambda: None,
    ) -> Slot:
        """Wait for a slot at one of the model's pods.

        Args:
            prompt: its prompt, if that decides its pod.
            entered_s: arrival time (monotonic); the request waits at most ``coldStart.maxWait`` from then on.
            is_retry: True after its pod died; it goes to the front of the queue.
            sequences: answers that the request asks for.
            priority: priority of its key.
            account: its key, or its client's address; many requests of one do not keep others waiting.
            trace: ``traceparent`` of its span, if one is kept.
            bound_to: tag of the only pod that can serve it, or None.
            on_admit: callback once it has a slot or a place in the queue: it was not refused at once.

        Raises:
            GatewayError: the request may not wait, or has waited too long.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Slot] = loop.create_future()
        wait_s = state.model.cold_start.max_wait_s - (time.monotonic() - entered_s)
        request = QueuedRequest(
            prompt,
            entered_s,
            time.monotonic() + wait_s,
            lambda result: _resolve_slot(state, outcome, result, request),
            sequences,
            priority,
            account,
            trace=trace,
            bound_to=bound_to,
        )
        try:
            (state.requeue_front if is_retry else state.admit)(request)
        finally:
            if not outcome.done():
                self._on_wait(state)
        on_admit()
        timer = loop.call_later(max(0.0, wait_s), self._expire, state, request.deadline_s)
        try:
            return await outcome
        except asyncio.CancelledError:
            state.queue.cancel(request)
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                outcome.result().release()
            raise
        finally:
            timer.cancel()


def _resolve_slot(
    state: ModelState, outcome: asyncio.Future[Slot], result: str | GatewayError, request: QueuedRequest
) -> None:
    """Turn a queue's result into a slot, unless the client disconnected in the same tick."""
    if outcome.done():
        return
    if isinstance(result, GatewayError):
        outcome.set_exception(result)
    else:
        prompt = request.prompt if state.wants_prompts else None
        outcome.set_result(Slot(state, state.pods[result], request.sequences, prompt))


def _claim(model: Model) -> Claim:
    asked = frozenset({model.name, model.served_name})
    names = (asked | model.names) - model.refused_names
    return Claim(model.key, model.created, names, granted=model.names, leaving=model.names - asked)
