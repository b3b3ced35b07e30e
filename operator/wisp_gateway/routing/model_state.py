"""Per-model routing state: endpoints, request queue, counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.errors import GatewayError
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.load_balancer import (
    EndpointLoad,
    home_endpoint,
    select_endpoint,
    slots_of,
)
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.prompt import Prompt
from wisp_gateway.routing.request_queue import QueuedRequest, RequestQueue, retry_after
from wisp_gateway.routing.response_ids import pod_tag

RATE_WINDOW_S = 5
# Weight of one finished request in the moving average of durations.
_MEAN_WEIGHT = 0.2


class AnswerTokens:
    """Count of one answer's tokens while it is passed on: streamed events, or the usage of a complete one."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0


class ModelState:
    """Routing state of one model; ``clock`` returns monotonic seconds."""

    def __init__(self, model: Model, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.model = model
        self.queue = RequestQueue()
        self.pods: dict[str, Pod] = {}
        self._ready_since_s = dict.fromkeys(_ready_pods(model), -math.inf)  # before anybody looked
        self.running = 0
        self.arrivals = 0
        self._tokens = 0  # of answers that have ended
        self._answers: set[AnswerTokens] = set()
        self.last_active_s: float | None = None
        self.observed_phase: tuple[str, float | None] | None = None  # a starting pod's, and its progress
        self.last_cold_start_s: float | None = None
        self.wake_trace = ""  # ``traceparent`` of the last wake's first request that is sampled
        self.last_wake: tuple[float, float] | None = None  # its beginning and its end, by the clock
        self._metrics = metrics
        self._clock = clock
        self._wake_began_s: float | None = None
        self._mean_run_s = 1.0
        self._round_robin_index = 0
        self._refusal: GatewayError | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOW_S + 1)

    @property
    def ready(self) -> int:
        """Number of ready pods."""
        return sum(pod.is_ready for pod in self.pods.values())

    @property
    def has_unhealthy_pods(self) -> bool:
        """True if a pod that is ready in the snapshot has broken a connection."""
        return any(pod.observed_ready is False and pod.endpoint.ready for pod in self.pods.values())

    @property
    def effective_state(self) -> str:
        """The snapshot's state, except that a model with a ready pod is Ready."""
        return (
            "Ready" if self.ready and self.model.state in ("Asleep", "Waking", "Failed") else self.model.state
        )

    @property
    def wake_began_s(self) -> float | None:
        """Time at which a request began the wake that runs, by the clock; None: there is none."""
        return self._wake_began_s

    @property
    def activity(self) -> str:
        """State in words, for those who wait: ``waking weights 62 %``."""
        state = self.effective_state
        if state == "Asleep" and self._wake_began_s is not None:
            state = "Waking"
        if state != "Waking":
            return f"{self.model.key}: {state}"
        phase, progress = self.observed_phase or (self.model.phase, self.model.progress)
        return " ".join(
            [
                "waking",
                *([phase] if phase else []),
                *([] if progress is None else [f"{progress:.0%}"[:-1], "%"]),
            ]
        )

    @property
    def idle_s(self) -> float | None:
        """Seconds since a request last arrived or ran; None: never."""
        if self.running or len(self.queue):
            return 0.0
        return None if self.last_active_s is None else self._clock() - self.last_active_s

    @property
    def idle_since_ready_s(self) -> float | None:
        """As :attr:`idle_s`, from the last time a pod became ready at the earliest: the operator's rule."""
        since_ready_s = self._clock() - max(self._ready_since_s.values(), default=-math.inf)
        idle_s = min(math.inf if self.idle_s is None else self.idle_s, since_ready_s)
        return idle_s if math.isfinite(idle_s) else None

    @property
    def retry_after_s(self) -> int:
        """``Retry-After`` of a refusal: the rest of the cold start, or the mean duration of a request."""
        if self.ready:
            return retry_after(expected_s=self._mean_run_s)
        elapsed_s = 0.0 if self._wake_began_s is None else self._clock() - self._wake_began_s
        return retry_after(expected_s=self.last_cold_start_s, elapsed_s=elapsed_s)

    @property
    def tokens(self) -> int:
        """Streamed events and counted tokens."""
        return self._tokens + sum(answer.tokens for answer in self._answers)

    def begin_answer(self) -> AnswerTokens:
        """Return the count of an answer, which is a part of the model's until :meth:`end_answer`."""
        self._answers.add(answer := AnswerTokens())
        return answer

    def end_answer(self, answer: AnswerTokens) -> None:
        """Keep an answer's tokens, which has ended."""
        self._answers.discard(answer)
        self._tokens += answer.tokens

    @property
    def wants_prompts(self) -> bool:
        """True if requests are routed by their prompts: the policy says so, and there is a choice."""
        return self.model.routing == "PrefixAware" and len(self.pods) > 1

    @property
    def tokens_per_second(self) -> float:
        """Streamed events and counted tokens a second, over the last five."""
        if len(self._samples) < 2:
            return 0.0
        (then_s, before), (now_s, after) = self._samples[0], self._samples[-1]
        return (after - before) / max(now_s - then_s, 1e-3)

    def pod_of_tag(self, tag: str | None) -> Pod | None:
        """Return the pod with a tag; None if there is none."""
        return next((pod for pod in self.pods.values() if pod.tag == tag), None)

    def sample(self) -> None:
        """Record the token count; called every second."""
        self._samples.append((self._clock(), self.tokens))

    def arrive(self) -> None:
        """Count a request for this model, unless it is suspended: that must not wake it."""
        if self.model.state == "Suspended":
            return
        self.arrivals += 1
        self.last_active_s = self._clock()

    @property
    def is_closed(self) -> bool:
        """True once the model is gone; one of the same name has a state of its own."""
        return self._refusal is not None

    def admit(self, request: QueuedRequest) -> None:
        """Give ``request`` a slot, queue it, or raise the refusal; starts a wake if no pod is ready."""
        if self._refusal is not None:
            raise self._refusal
        if not self.ready and self._wake_began_s is None and self.model.state not in ("Suspended", "Failed"):
            self._wake_began_s, self.wake_trace = self._clock(), ""
            self._metrics.wakes.add(1, self.model.key)
        self.wake_trace = self.wake_trace or request.trace
        ready, retry_after_s = self.ready, self.retry_after_s
        self.queue.admit(request, self.model, self._select_endpoint, ready=ready, retry_after_s=retry_after_s)

    def requeue_front(self, request: QueuedRequest) -> None:
        """Put a request whose pod died first in the queue, unless the model cannot come back."""
        if self._refusal is not None:
            raise self._refusal
        self.queue.requeue_front(request)
        self.advance()

    def replace(self, model: Model) -> None:
        """Update the model and its pods from a snapshot."""
        self.model = model
        listed = {endpoint.id: endpoint for endpoint in model.endpoints}
        self.pods = {
            id: self.pods.get(id) or Pod(endpoint, pod_tag(model.key, id)) for id, endpoint in listed.items()
        }
        for id, endpoint in listed.items():
            self.pods[id].replace(endpoint)
        now_s = self._clock()
        self._ready_since_s = {id: self._ready_since_s.get(id, now_s) for id in _ready_pods(model)}
        if model.state == "Failed" or (model.state == "Asleep" and not len(self.queue)):
            self._wake_began_s = None
        self.advance()

    def advance(self) -> None:
        """Dispatch and revalidate the queue after a change."""
        if self.ready and self._wake_began_s is not None:
            self.last_wake = (self._wake_began_s, self._clock())
            self.last_cold_start_s = self.last_wake[1] - self.last_wake[0]
            self._metrics.cold_start.observe(self.last_cold_start_s, self.model.key)
            self._wake_began_s = None
        self.queue.dispatch(self._select_endpoint, self._preferred_endpoint)
        self.queue.revalidate(self.model, self.model.key, ready=self.ready, retry_after_s=self.retry_after_s)

    def close(self, refusal: GatewayError) -> None:
        """Refuse every queued request, and whatever comes back to the queue: the model is gone."""
        self._refusal = refusal
        self.queue.refuse_all(refusal)

    def expire(self, deadline_s: float, why: str = "") -> None:
        """Refuse the queued requests past their deadline.

        Args:
            deadline_s: deadline whose timer fired; uvloop counts whole milliseconds, and may be early.
            why: the reason that no pod came, if known.
        """
        self.queue.expire(max(self._clock(), deadline_s), self.model.key, self.retry_after_s, why)

    def assign(self, pod: Pod, prompt: Prompt) -> int:
        """Record that ``pod`` is sent a prompt; return the bytes of it that the pod has to compute."""
        record, by = pod.record, "load"
        matched_bytes = record.matched_bytes(prompt.chain)
        if matched_bytes:
            by = "prefix"
        record.add(prompt.chain)
        if prompt.session is not None:
            by = "session" if record.has_session(prompt.session) else by
            for other in self.pods.values():
                other.record.drop_session(prompt.session)
            record.add_session(prompt.session)
        self._metrics.routed.add(1, self.model.key, by)
        self._metrics.prompts.add(prompt.size_bytes, self.model.key)
        self._metrics.matched.add(matched_bytes, self.model.key)
        return prompt.size_bytes - matched_bytes

    def acquire(self, pod: Pod, sequences: int) -> int:
        """Count a request that begins at ``pod``; return its number of slots there."""
        slots = slots_of(sequences, self.model.target_concurrency)
        pod.running += 1
        pod.slots_used += slots
        pod.sequences += sequences
        self.running += 1
        self._round_robin_index += 1
        return slots

    def release(self, pod: Pod, slots: int, sequences: int, ran_s: float) -> None:
        """Count a request that ended at ``pod`` after ``ran_s`` seconds; dispatch the next one."""
        pod.running -= 1
        pod.slots_used -= slots
        pod.sequences -= sequences
        self.running -= 1
        self.last_active_s = self._clock()
        self._mean_run_s += _MEAN_WEIGHT * (ran_s - self._mean_run_s)
        self.advance()

    def _select_endpoint(self, request: QueuedRequest) -> str | None:
        """Return the pod for a request; None: it waits. One that continues a response waits for its pod."""
        bound = self._bound_pod(request)
        if bound is not None:
            is_free = (
                bound.is_ready and not bound.is_paused and bound.slots_used < self.model.target_concurrency
            )
            return bound.endpoint.id if is_free else None
        prompt = request.prompt if self.wants_prompts else None
        key = prompt.rendezvous_key if prompt is not None else None
        return select_endpoint(self._loads(prompt), key=key, round_robin_index=self._round_robin_index)

    def _preferred_endpoint(self, request: QueuedRequest) -> str | None:
        """Return a free pod for a queued request: of one that has a home only that; None: it is full."""
        if request.home is None:
            prompt = request.prompt if self.wants_prompts else None
            home = home_endpoint(self._loads(prompt)) if prompt is not None else None
            request.home = home or ""
        pod = self.pods.get(request.home)
        if pod is None or not pod.is_ready or pod.is_paused:
            return self._select_endpoint(request)
        return request.home if pod.slots_used < self.model.target_concurrency else None

    def _bound_pod(self, request: QueuedRequest) -> Pod | None:
        bound = self.pod_of_tag(request.bound_to) if request.bound_to is not None else None
        return bound if bound is not None and not bound.endpoint.draining else None

    def _loads(self, prompt: Prompt | None) -> list[EndpointLoad]:
        limit = self.model.target_concurrency
        ready = [pod for pod in self.pods.values() if pod.is_ready and not pod.is_paused]
        return [pod.load(limit, prompt) for pod in ready]


def _ready_pods(model: Model) -> list[str]:
    return [endpoint.id for endpoint in model.endpoints if endpoint.ready and not endpoint.draining]
