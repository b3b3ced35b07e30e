"""Metrics of the server by name, and the timer of one request.

Our own names start with ``wisp_`` and carry their unit. Those of the Gateway API Inference Extension
(``vllm:…``) are there too, so that its endpoint picker can read our pods.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from wisp_runtime.engine.transport.messages import Load, Phase
from wisp_runtime.metrics import Counter, Histogram, Reading, Registry

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
RATE_WINDOW_S = 5.0


class Telemetry:
    """All metrics of one server, labelled with its model's name.

    Args:
        model: served name of the model.
        load: reader of the engine's load.
        phases: reader of the start-up phases.
        block_tokens: tokens a KV block.
    """

    def __init__(
        self, model: str, load: Callable[[], Load], phases: Callable[[], tuple[Phase, ...]], block_tokens: int
    ) -> None:
        self.registry = Registry({"model_name": model})
        self.rate = TokenRate(RATE_WINDOW_S)
        self._add_requests()
        self._add_load(load)
        self._add_engine_counts(load)
        add, labels = self.registry.add, {"block_size": str(block_tokens)}
        add(
            Reading(
                "vllm:cache_config_info",
                "KV cache settings.",
                lambda: [({**labels, "num_gpu_blocks": str(load().kv_blocks_total)}, 1.0)],
            )
        )
        add(
            Reading(
                "wisp_startup_seconds",
                "Time each start-up phase took.",
                lambda: [({"phase": phase.name}, phase.seconds) for phase in phases()],
            )
        )

    def _add_requests(self) -> None:
        add = self.registry.add
        self.responses = add(
            Counter("wisp_http_responses_total", "Responses of /v1 by path and status.", ("path", "status"))
        )
        self.finished = add(
            Counter("wisp_sequences_finished_total", "Sequences by finish reason.", ("finished_reason",)),
            also_as="vllm:request_success_total",
        )
        self.first_token_s = add(
            Histogram("wisp_time_to_first_token_seconds", "From the request's admission.", SECONDS),
            also_as="vllm:time_to_first_token_seconds",
        )
        self.token_s = add(
            Histogram(
                "wisp_time_per_output_token_seconds", "Mean of each sequence after its first.", SECONDS
            ),
            also_as="vllm:time_per_output_token_seconds",
        )
        self.sequence_s = add(
            Histogram("wisp_sequence_seconds", "From a sequence's admission to its end.", LONG_SECONDS),
            also_as="vllm:e2e_request_latency_seconds",
        )
        self.prompt_tokens = add(
            Histogram("wisp_prompt_tokens", "Tokens of each prompt.", TOKENS),
            also_as="vllm:request_prompt_tokens",
        )
        self.generation_tokens = add(
            Histogram("wisp_generation_tokens", "Generated tokens of each sequence.", TOKENS),
            also_as="vllm:request_generation_tokens",
        )

    def _add_load(self, load: Callable[[], Load]) -> None:
        for name, other, help, read in (
            ("wisp_sequences_waiting", "vllm:num_requests_waiting", "Sequences not yet admitted.", _waiting),
            ("wisp_sequences_running", "vllm:num_requests_running", "Sequences in the step.", _running),
            (
                "wisp_kv_cache_usage_ratio",
                "vllm:kv_cache_usage_perc",
                "Used share of blocks, 0 to 1.",
                _usage,
            ),
        ):
            self.registry.add(Reading(name, help, _of(load, read)), also_as=other)
        self.registry.add(
            Reading(
                "wisp_generation_tokens_per_second",
                f"Generated in the last {RATE_WINDOW_S:g} seconds.",
                lambda: self.rate.per_second(time.monotonic()),
            )
        )

    def _add_engine_counts(self, load: Callable[[], Load]) -> None:
        for name, other, field, help in (
            ("wisp_prompt_tokens_computed_total", None, "prompt_tokens_total", "Without prefix hits."),
            (
                "wisp_prompt_tokens_cached_total",
                "vllm:prefix_cache_hits_total",
                "cached_tokens_total",
                "Hits.",
            ),
            (
                *("wisp_generation_tokens_total", "vllm:generation_tokens_total"),
                *("generated_tokens_total", "Tokens generated."),
            ),
            ("wisp_steps_total", None, "steps", "Engine steps."),
            (
                "wisp_preemptions_total",
                "vllm:num_preemptions_total",
                "preemptions_total",
                "Sequences put back.",
            ),
        ):
            self.registry.add(Reading(name, help, _field(load, field), "counter"), also_as=other)
        for name in ("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total"):
            self.registry.add(Reading(name, "Prompt tokens, cached or not.", _of(load, _prompt), "counter"))

    def start_timer(self, prompt_tokens: int) -> RequestTimer:
        """Start the timer of one sequence."""
        self.prompt_tokens.observe(prompt_tokens)
        return RequestTimer(self, time.monotonic())


class RequestTimer:
    """Timer of one sequence. Close it however the sequence ends.

    Attributes:
        reason: reason of the end.
        first_token_s: time from the sequence's admission to its first token; None before it.
        per_token_s: mean time of each further token; None before the end, and of fewer than two.
    """

    def __init__(self, telemetry: Telemetry, start_s: float) -> None:
        self._telemetry = telemetry
        self._start_s = start_s
        self._first_s: float | None = None
        self.reason = "abort"
        self.first_token_s: float | None = None
        self.per_token_s: float | None = None

    def token(self, now_s: float) -> None:
        """Record a token."""
        self._telemetry.rate.add(now_s)
        if self._first_s is None:
            self._first_s = now_s
            self.first_token_s = now_s - self._start_s
            self._telemetry.first_token_s.observe(self.first_token_s)

    def finish(self, now_s: float, reason: str, tokens: int) -> None:
        """Record a regular end."""
        self.reason = reason
        self._telemetry.sequence_s.observe(now_s - self._start_s)
        self._telemetry.generation_tokens.observe(tokens)
        if tokens > 1 and self._first_s is not None:
            self.per_token_s = (now_s - self._first_s) / (tokens - 1)
            self._telemetry.token_s.observe(self.per_token_s)

    def fail(self, reason: str) -> None:
        """Record an end without an answer, by the engine's name of its reason."""
        self.reason = reason

    def close(self) -> None:
        """Count the sequence by its reason; with neither :meth:`finish` nor :meth:`fail`, it was aborted."""
        self._telemetry.finished.add(finished_reason=self.reason)


class TokenRate:
    """Tokens a second over the last ``window_s`` seconds, counted in tenths of a second."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._slots: deque[tuple[int, int]] = deque()

    def add(self, now_s: float) -> None:
        """Count one token."""
        slot = int(now_s * 10)
        count = self._slots.pop()[1] if self._slots and self._slots[-1][0] == slot else 0
        self._slots.append((slot, count + 1))
        self._drop_old(now_s)

    def per_second(self, now_s: float) -> float:
        """Return the mean rate of the window that ends now."""
        self._drop_old(now_s)
        return sum(count for _, count in self._slots) / self._window_s

    def _drop_old(self, now_s: float) -> None:
        while self._slots and self._slots[0][0] <= (now_s - self._window_s) * 10:
            self._slots.popleft()


def _of(load: Callable[[], Load], read: Callable[[Load], float]) -> Callable[[], float]:
    return lambda: read(load())


def _field(load: Callable[[], Load], name: str) -> Callable[[], float]:
    return lambda: float(getattr(load(), name))


def _waiting(load: Load) -> float:
    return load.waiting


def _running(load: Load) -> float:
    return load.running


def _usage(load: Load) -> float:
    return load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0


def _prompt(load: Load) -> float:
    return load.prompt_tokens_total + load.cached_tokens_total
