"""Request queue of one model: admission, order, deadlines.

Pure: time is an argument, ``select`` names the endpoint, and results go to each request's ``resolve``; so
every rule is one row of a table test. :mod:`.registry` adds the clock, the pods and the futures.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.errors import (
    GatewayError,
    ModelAsleep,
    ModelFailed,
    ModelNotFound,
    ModelSuspended,
    QueueFull,
    WaitedTooLong,
)
from wisp_gateway.routing.prompt import Prompt

# The official SDKs do not retry when Retry-After is over two minutes.
MAX_RETRY_AFTER_S = 60
UNKNOWN_COLD_START_S = 10.0
# A request waits as one that came this much later: bounded, so that each is served in the end.
PRIORITY_DELAY_S = {"high": -30.0, "low": 30.0}
# For each further answer, and for each request of the same account before it.
SEQUENCE_DELAY_S = 0.25
MAX_DELAY_S = 30.0
MIN_KEPT_TURNS = 64
# Requests at the front, and pods' first bound ones, among which the next is chosen: each of them. And how
# often one is passed by later ones.
MAX_LOOKED_AT = 64
MAX_TIMES_PASSED = 32


@dataclass(eq=False)
class QueuedRequest:
    """One request for a slot at a pod.

    Args:
        prompt: its prompt, if that decides its pod.
        entered_s, deadline_s: times on the caller's monotonic clock.
        resolve: callback, called once with the endpoint's id or the refusal.
        sequences: answers that it asks for.
        priority: ``high``, ``normal`` or ``low``.
        account: its key, or its client's address.
        is_retry: True after its pod died; then it goes before all others.
        bound_to: tag of the pod that stores the response that it continues; others pass it in the queue.
        turn_s: time at which its account's requests before it have had their turn; set by the queue.
        home: endpoint that has its session or most of its prompt; empty: none; None: not looked up.
        times_passed: number of later requests that went before it to their own pods; set by the queue.
        trace: ``traceparent`` of its span, if that is sampled.
    """

    prompt: Prompt | None
    entered_s: float
    deadline_s: float
    resolve: Callable[[str | GatewayError], None]
    sequences: int = 1
    priority: str = "normal"
    account: str = ""
    is_retry: bool = False
    bound_to: str | None = None
    turn_s: float = 0.0
    home: str | None = None
    times_passed: int = 0
    trace: str = ""

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key of the queue."""
        ahead_s = max(0.0, self.turn_s - self.entered_s)
        delay_s = min(ahead_s + SEQUENCE_DELAY_S * (self.sequences - 1), MAX_DELAY_S)
        return not self.is_retry, self.entered_s + delay_s + PRIORITY_DELAY_S.get(self.priority, 0.0)


SelectEndpoint = Callable[[QueuedRequest], str | None]


class RequestQueue:
    """Bounded queue of one model: first come first served, but for priority and what an account asks for."""

    def __init__(self) -> None:
        self._queue: list[QueuedRequest] = []  # that any pod may serve
        self._bound: dict[str, list[QueuedRequest]] = {}  # by the pod for which they wait
        self._turns_s: dict[str, float] = {}  # of each account's next request

    def __len__(self) -> int:
        return len(self._queue) + sum(map(len, self._bound.values()))

    def admit(
        self, request: QueuedRequest, model: Model, select: SelectEndpoint, *, ready: int, retry_after_s: int
    ) -> None:
        """Resolve ``request`` at once, or append it to the queue.

        Args:
            ready: number of ready pods.
            retry_after_s: ``Retry-After`` of a refusal.

        Raises:
            QueueFull, ModelAsleep, ModelSuspended, ModelFailed: the request may not wait.
        """
        refusal = refuse_wait(model, ready=ready, retry_after_s=retry_after_s)
        if refusal is not None:
            raise refusal
        is_first = not self._queue and request.bound_to not in self._bound
        endpoint_id = select(request) if is_first else None
        if endpoint_id is not None:
            request.resolve(endpoint_id)
            return
        if len(self) >= model.cold_start.queue_limit:
            full = QueueFull(
                f"{len(self)} requests already wait for model {model.key} "
                f"(coldStart.queueLimit {model.cold_start.queue_limit}). Retry later, or raise the limit.",
                retry_after_s=retry_after_s,
            )
            displaced = self._displaced_by(request)
            if displaced is None:
                raise full
            self._remove(displaced)
            displaced.resolve(full)
        self._take_turn(request)
        self._insert(request)

    def requeue_front(self, request: QueuedRequest) -> None:
        """Put a request whose pod died at the front; it was admitted before, so the limit does not apply."""
        request.is_retry = True
        self._insert(request)

    def dispatch(self, select: SelectEndpoint, prefer: SelectEndpoint | None = None) -> None:
        """Resolve requests while an endpoint takes one.

        The first goes, unless the endpoint of its prefix is full and that of a later one is not: then that
        one passes it, as in delay scheduling (Zaharia et al., EuroSys 2010), a bounded number of times.

        Args:
            select: function that returns the endpoint for a request, None if each is full.
            prefer: function like ``select``, but None if the endpoint with the request's prefix is full.
        """
        while (choice := self._choose(select, prefer)) is not None:
            request, endpoint_id = choice
            self._remove(request)
            request.resolve(endpoint_id)

    def _choose(
        self, select: SelectEndpoint, prefer: SelectEndpoint | None
    ) -> tuple[QueuedRequest, str] | None:
        """Return the next request that goes, and its endpoint; None: each waits."""
        passed, fallback = list[QueuedRequest](), None
        for request in self._front():
            endpoint_id = None
            if request.bound_to is not None:
                endpoint_id = select(request)
            elif not passed:
                fallback = select(request)
                if fallback is None:
                    return None  # any endpoint would do
                endpoint_id = prefer(request) if prefer is not None else fallback
            elif prefer is not None and request.priority == passed[0].priority:
                endpoint_id = prefer(request)
            if endpoint_id is not None:
                for earlier in passed:
                    earlier.times_passed += 1
                return request, endpoint_id
            if request.bound_to is None:
                passed.append(request)
                if request.is_retry or request.times_passed >= MAX_TIMES_PASSED:
                    break
        return (passed[0], fallback) if passed and fallback is not None else None

    def revalidate(self, model: Model | None, key: str, *, ready: int, retry_after_s: int) -> None:
        """Refuse every queued request if the model (None: deleted) is no longer expected to serve."""
        if not len(self):
            return
        refusal: GatewayError | None = ModelNotFound(f"Model {key} was deleted while the request waited.")
        if model is not None:
            refusal = refuse_wait(model, ready=ready, retry_after_s=retry_after_s, is_held=True)
        if refusal is not None:
            self.refuse_all(refusal)

    def refuse_all(self, refusal: GatewayError) -> None:
        """Resolve every queued request with ``refusal``."""
        for request in self._all():
            self._remove(request)
            request.resolve(refusal)

    def expire(self, now_s: float, model_key: str, retry_after_s: int, why: str = "") -> None:
        """Refuse the requests past their deadline; ``why``: the reason that no pod came, if one is known."""
        late = [request for request in self._all() if request.deadline_s <= now_s]
        for request in late:
            self._remove(request)
            waited = f"{now_s - request.entered_s:.3g} s"
            request.resolve(
                WaitedTooLong(
                    f"Model {model_key} had no free pod for {waited} (coldStart.maxWait){why}. Retry later.",
                    retry_after_s=retry_after_s,
                )
            )

    def _displaced_by(self, request: QueuedRequest) -> QueuedRequest | None:
        """Return the last request of the account with most places, if that of ``request`` has fewer."""
        waiting = [queued for queued in self._all() if not queued.is_retry]
        counts = Counter(queued.account for queued in waiting)
        largest, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count <= counts[request.account] + 1:
            return None
        return next(queued for queued in reversed(waiting) if queued.account == largest)

    def _take_turn(self, request: QueuedRequest) -> None:
        """Count ``request`` for its account, so that many of one let a stranger's few pass."""
        now_s = request.entered_s
        if not len(self):
            self._turns_s.clear()
        elif len(self._turns_s) > 2 * len(self) + MIN_KEPT_TURNS:
            self._turns_s = {account: turn for account, turn in self._turns_s.items() if turn > now_s}
        request.turn_s = max(now_s, self._turns_s.get(request.account, 0.0))
        self._turns_s[request.account] = min(request.turn_s, now_s + MAX_DELAY_S) + SEQUENCE_DELAY_S

    def _insert(self, request: QueuedRequest) -> None:
        tag = request.bound_to
        waiting = self._queue if tag is None else self._bound.setdefault(tag, [])
        insort(waiting, request, key=_order)

    def _remove(self, request: QueuedRequest) -> None:
        tag = request.bound_to
        (self._queue if tag is None else self._bound[tag]).remove(request)
        if tag is not None and not self._bound[tag]:
            del self._bound[tag]

    def _all(self) -> list[QueuedRequest]:
        return list(merge(self._queue, *self._bound.values(), key=_order))

    def _front(self) -> Iterator[QueuedRequest]:
        """Yield the first requests that any pod may serve and the first of each pod's bound ones, in order.

        Bound ones behind the first wait for the same slot; counted with the others, they would hide these.
        """
        bound = sorted((waiting[0] for waiting in islice(self._bound.values(), MAX_LOOKED_AT)), key=_order)
        return merge(islice(self._queue, MAX_LOOKED_AT), bound, key=_order)

    def traces(self, limit: int) -> list[str]:
        """Return the traces of at most ``limit`` requests, the first to go first."""
        return list(islice((request.trace for request in self._front() if request.trace), limit))

    def cancel(self, request: QueuedRequest) -> None:
        """Remove a request whose client disconnected."""
        tag = request.bound_to
        if request in (self._queue if tag is None else self._bound.get(tag, ())):
            self._remove(request)


def _order(request: QueuedRequest) -> tuple[bool, float]:
    return request.order


def refuse_wait(
    model: Model, *, ready: int, retry_after_s: int, is_held: bool = False
) -> GatewayError | None:
    """Return why a request may not wait for ``model``, or None. ``is_held``: it was admitted earlier."""
    if model.state == "Suspended":
        if model.reason == "ReplicasZero":
            return ModelSuspended(f"Model {model.key} has spec.replicas 0. Scale it up to use it.")
        return ModelSuspended(f"Model {model.key} is suspended (spec.suspend). Resume it to use it.")
    if ready:
        return None
    if model.state == "Failed":
        why = ": ".join(part for part in (model.reason, model.message) if part) or "no reason given"
        is_final = model.has_lasting_failure
        message = f"Model {model.key} cannot start{'' if is_final else ' now'}: {why}"
        return ModelFailed(message, is_final=is_final, retry_after_s=retry_after_s)
    if model.cold_start.mode == "Reject" and not is_held:
        return ModelAsleep(
            f"Model {model.key} is waking up (coldStart.mode Reject). Retry in {retry_after_s} s.",
            retry_after_s=retry_after_s,
        )
    return None


def retry_after(*, expected_s: float | None, elapsed_s: float = 0.0) -> int:
    """Return ``Retry-After`` in whole seconds, 1 to 60: the expected duration less the elapsed time.

    Once more has elapsed than was expected, it is the elapsed time: the end is as far away as the beginning.
    """
    expected = UNKNOWN_COLD_START_S if expected_s is None else expected_s
    left_s = expected - elapsed_s if expected > elapsed_s else elapsed_s
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(left_s)))
