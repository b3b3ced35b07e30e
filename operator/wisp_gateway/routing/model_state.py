"""One model's desk: its pods as we know them, its line, and what has been counted.

A pod is ready if the directory says so, unless our own experience is newer: a pod that just died is not
asked again before its ``/readyz`` answers, and one that answers is used before the directory has noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.errors import GatewayError
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.load_balancer import Load, pick
from wisp_gateway.routing.request_queue import Hold, Ticket, retry_after

RATE_WINDOW_S = 5
# How much one finished request moves the mean of their durations.
_MEAN_WEIGHT = 0.2


class Pod:
    """One endpoint and what we know of it beyond the directory."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.running = 0
        self.answers: bool | None = None  # None: as the directory says

    @property
    def is_ready(self) -> bool:
        """It may get new requests."""
        if self.endpoint.draining:
            return False
        return self.endpoint.ready if self.answers is None else self.answers

    def replace(self, endpoint: Endpoint) -> None:
        """Take the directory's news; where they contradict our experience, they are newer."""
        old, self.endpoint = self.endpoint, endpoint
        if (old.address, old.ready) != (endpoint.address, endpoint.ready):
            self.answers = None


class Desk:
    """Everything the gateway keeps about one model; ``clock`` gives monotonic seconds."""

    def __init__(self, model: Model, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.model = model
        self.hold = Hold()
        self.pods: dict[str, Pod] = {}
        self.running = 0
        self.arrivals = 0
        self.tokens = 0
        self.last_active_s: float | None = None
        self.last_cold_start_s: float | None = None
        self._metrics = metrics
        self._clock = clock
        self._wake_began_s: float | None = None
        self._mean_run_s = 1.0
        self._turn = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOW_S + 1)

    @property
    def ready(self) -> int:
        """How many pods answer now."""
        return sum(pod.is_ready for pod in self.pods.values())

    @property
    def has_doubts(self) -> bool:
        """A pod that is ready in the directory's eyes has broken a connection."""
        return any(pod.answers is False and pod.endpoint.ready for pod in self.pods.values())

    @property
    def state(self) -> str:
        """The directory's state, except that a model whose pod already answers is Ready."""
        return (
            "Ready" if self.ready and self.model.state in ("Asleep", "Waking", "Failed") else self.model.state
        )

    @property
    def idle_s(self) -> float | None:
        """Seconds since a request last arrived or ran; None: never."""
        if self.running or len(self.hold):
            return 0.0
        return None if self.last_active_s is None else self._clock() - self.last_active_s

    @property
    def retry_after_s(self) -> int:
        """What a refused client is told: the rest of the cold start, or the usual length of a request."""
        if self.ready:
            return retry_after(expected_s=self._mean_run_s)
        elapsed_s = 0.0 if self._wake_began_s is None else self._clock() - self._wake_began_s
        return retry_after(expected_s=self.last_cold_start_s, elapsed_s=elapsed_s)

    @property
    def tokens_per_second(self) -> float:
        """Streamed events and counted tokens a second, over the last five."""
        if len(self._samples) < 2:
            return 0.0
        (then_s, before), (now_s, after) = self._samples[0], self._samples[-1]
        return (after - before) / max(now_s - then_s, 1e-3)

    def sample(self) -> None:
        """Note the token count; called every second."""
        self._samples.append((self._clock(), self.tokens))

    def arrive(self) -> None:
        """Count a request for this model; one for a suspended model is no wish to wake."""
        if self.model.state == "Suspended":
            return
        self.arrivals += 1
        self.last_active_s = self._clock()

    def admit(self, ticket: Ticket) -> None:
        """Give ``ticket`` a place or let it wait, or raise why not; begins a wake if nobody is ready."""
        if not self.ready and self._wake_began_s is None and self.model.state not in ("Suspended", "Failed"):
            self._wake_began_s = self._clock()
            self._metrics.wakes.add(1, self.model.key)
        ready, retry_after_s = self.ready, self.retry_after_s
        self.hold.admit(ticket, self.model, self._pick, ready=ready, retry_after_s=retry_after_s)

    def readmit(self, ticket: Ticket) -> None:
        """Let a request whose pod died go first, unless the model cannot come back."""
        self.hold.readmit(ticket)
        self.advance()

    def replace(self, model: Model) -> None:
        """Take the directory's news about the model and its pods."""
        self.model = model
        listed = {endpoint.id: endpoint for endpoint in model.endpoints}
        self.pods = {id: self.pods.get(id) or Pod(endpoint) for id, endpoint in listed.items()}
        for id, endpoint in listed.items():
            self.pods[id].replace(endpoint)
        if model.state == "Asleep" and not len(self.hold):
            self._wake_began_s = None
        self.advance()

    def advance(self) -> None:
        """Let the line move after anything changed."""
        if self.ready and self._wake_began_s is not None:
            self.last_cold_start_s = self._clock() - self._wake_began_s
            self._metrics.cold_start.observe(self.last_cold_start_s, self.model.key)
            self._wake_began_s = None
        self.hold.serve(self._pick)
        self.hold.review(self.model, self.model.key, ready=self.ready, retry_after_s=self.retry_after_s)

    def close(self, refusal: GatewayError) -> None:
        """Refuse everybody who waits."""
        self.hold.refuse_all(refusal)

    def expire(self) -> None:
        """Refuse those who have waited too long."""
        self.hold.expire(self._clock(), self.model.key, self.retry_after_s)

    def occupy(self, pod: Pod) -> None:
        """Count a request that begins at ``pod``."""
        pod.running += 1
        self.running += 1
        self._turn += 1

    def vacate(self, pod: Pod, ran_s: float) -> None:
        """Count a request that ended at ``pod`` after ``ran_s`` seconds; the next in line goes."""
        pod.running -= 1
        self.running -= 1
        self.last_active_s = self._clock()
        self._mean_run_s += _MEAN_WEIGHT * (ran_s - self._mean_run_s)
        self.advance()

    def _pick(self, ticket: Ticket) -> str | None:
        limit = self.model.target_concurrency
        loads = [Load(id, pod.running, limit) for id, pod in self.pods.items() if pod.is_ready]
        key = ticket.key if self.model.routing == "PrefixAware" else None
        return pick(loads, key=key, turn=self._turn)
