"""Metrics of the server by name, and the timer of one request.

Our own names start with ``wisp_`` and carry their unit. Beside them are vLLM's of the same meaning
(``vllm:…``), which dashboards and the Gateway API Inference Extension read; docs/metrics.md compares them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from wisp_runtime.engine.transport.messages import ExpertReport, Load, Phase, Ready, TokenEvent
from wisp_runtime.metrics import Counter, Histogram, Reading, Registry
from wisp_runtime.server import readings
from wisp_runtime.server.expert_metrics import add_experts
from wisp_runtime.server.readings import Samples, TokenRate
from wisp_runtime.server.state_metrics import add_state_metrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_SECONDS = (*SECONDS, 120.0, 300.0, 600.0)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
CHOICES = (1, 2, 5, 10, 20)
RATE_WINDOW_S = 5.0
NEVER_BEGUN = frozenset({"refused", "overloaded", "expired"})
"""Reasons of ends that vLLM does not count among finished requests."""


class Telemetry:
    """All metrics of one server, labelled with its model's name.

    Args:
        model: served name of the model.
        load: reader of the engine's load.
        phases: reader of the start-up phases.
        block_tokens: tokens a KV block.
        info: reader of the engine's capabilities, None before it is ready.
        experts: reader of the last report of the experts' load.
    """

    def __init__(
        self,
        model: str,
        load: Callable[[], Load],
        phases: Callable[[], tuple[Phase, ...]],
        block_tokens: int,
        info: Callable[[], Ready | None] = lambda: None,
        experts: Callable[[], ExpertReport | None] = lambda: None,
    ) -> None:
        self.registry = Registry({"model_name": model}, {"engine": "0"})
        self.rate = TokenRate(RATE_WINDOW_S)
        self._add_requests()
        self._add_latencies()
        self._add_sizes()
        self._add_load(load)
        self._add_engine_counts(load)
        add_state_metrics(self.registry, load)
        self._add_start(phases, info)
        add_experts(self.registry, experts)
        blocks = {"block_size": str(block_tokens)}
        self.registry.add(
            Reading(
                "vllm:cache_config_info",
                "KV cache settings.",
                lambda: [({**blocks, "num_gpu_blocks": str(load().kv_blocks_total)}, 1.0)],
            )
        )

    def _add_requests(self) -> None:
        self.responses = self.registry.add(
            Counter("wisp_http_responses_total", "Responses of /v1 by path and status.", ("path", "status"))
        )
        self.finished = self.registry.add(
            Counter("wisp_sequences_finished_total", "Sequences by finish reason.", ("finished_reason",))
        )
        for reason in ("stop", "length", "abort", "error"):
            self.finished.add(0, finished_reason=reason)
        text = "Sequences that began, by finish reason."
        self.registry.add(Reading("vllm:request_success_total", text, self._begun, "counter"))

    def _begun(self) -> Samples:
        for _, labels, value in self.finished.samples():
            if labels["finished_reason"] not in NEVER_BEGUN:
                yield labels, value

    def _add_latencies(self) -> None:
        self.first_token_s = self._seconds(
            "wisp_time_to_first_token", "From the request's admission.", "vllm:time_to_first_token_seconds"
        )
        self.gap_s = self._seconds(
            "wisp_inter_token",
            "Between one token of a sequence and the next.",
            *("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        )
        self.token_s = self._seconds(
            "wisp_time_per_output_token",
            "Mean of each sequence after its first.",
            "vllm:request_time_per_output_token_seconds",
        )
        self.sequence_s = self._seconds(
            "wisp_sequence", "From a sequence's admission to its end.", "vllm:e2e_request_latency_seconds"
        )
        self.queue_s, self.prefill_s, self.decode_s, self.inference_s = (
            self._seconds(f"wisp_sequence_{name}", text, f"vllm:request_{name}_time_seconds")
            for name, text in (
                ("queue", "From the engine's receipt to a place in its step."),
                ("prefill", "From there to the first token."),
                ("decode", "From the first token to the last."),
                ("inference", "From a place in the step to the last token."),
            )
        )

    def _seconds(self, name: str, text: str, *also_as: str) -> Histogram:
        return self.registry.add(Histogram(f"{name}_seconds", text, LONG_SECONDS), *also_as)

    def _add_sizes(self) -> None:
        self.prompt_tokens = self._tokens("wisp_prompt_tokens", "Tokens of each prompt.", "prompt_tokens")
        self.computed_tokens = self._tokens(
            "wisp_prompt_computed_tokens", "Those not in the prefix cache.", "prefill_kv_computed_tokens"
        )
        self.generation_tokens = self._tokens(
            "wisp_generation_tokens", "Generated tokens of each sequence.", "generation_tokens"
        )
        self.longest_tokens = self._tokens(
            "wisp_choices_max_generation_tokens",
            "Generated tokens of the longest choice of each prompt.",
            "max_num_generation_tokens",
        )
        self.max_tokens = self._tokens(
            "wisp_max_tokens", "Tokens that each sequence may generate.", "params_max_tokens"
        )
        self.choices = self.registry.add(
            Histogram("wisp_choices", "Choices of each prompt.", CHOICES), "vllm:request_params_n"
        )

    def _tokens(self, name: str, text: str, other: str) -> Histogram:
        return self.registry.add(Histogram(name, text, TOKENS), f"vllm:request_{other}")

    def _add_load(self, load: Callable[[], Load]) -> None:
        for name, other, text, read in (
            (
                "wisp_sequences_waiting",
                "num_requests_waiting",
                "Sequences not yet admitted.",
                readings.waiting,
            ),
            ("wisp_sequences_running", "num_requests_running", "Sequences in the step.", readings.running),
            (
                "wisp_kv_cache_usage_ratio",
                "kv_cache_usage_perc",
                "Used share of blocks, 0 to 1.",
                readings.kv_usage,
            ),
        ):
            self.registry.add(Reading(name, text, readings.of(load, read)), f"vllm:{other}")
        self.registry.add(
            Reading(
                "wisp_generation_tokens_per_second",
                f"Generated in the last {RATE_WINDOW_S:g} seconds.",
                lambda: self.rate.per_second(time.monotonic()),
            )
        )

    def _add_engine_counts(self, load: Callable[[], Load]) -> None:
        for field, text, name, *also_as in (
            ("prompt_tokens_total", "Without prefix hits.", "wisp_prompt_tokens_computed_total"),
            (
                *("cached_tokens_total", "Hits.", "wisp_prompt_tokens_cached_total"),
                *("vllm:prefix_cache_hits_total", "vllm:prompt_tokens_cached_total"),
            ),
            (
                *("generated_tokens_total", "Tokens generated.", "wisp_generation_tokens_total"),
                "vllm:generation_tokens_total",
            ),
            ("steps", "Engine steps.", "wisp_steps_total"),
            (
                *("preemptions_total", "Sequences put back.", "wisp_preemptions_total"),
                "vllm:num_preemptions_total",
            ),
        ):
            self.registry.add(Reading(name, text, readings.field(load, field), "counter"), *also_as)
        for name in ("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total"):
            self.registry.add(
                Reading(
                    name,
                    "Prompt tokens, cached or not.",
                    readings.of(load, readings.prompt_tokens),
                    "counter",
                )
            )
        self.registry.add(
            Reading(
                "vllm:prompt_tokens_by_source_total",
                "Prompt tokens by source.",
                lambda: readings.sources(load()),
                "counter",
            )
        )

    def _add_start(self, phases: Callable[[], tuple[Phase, ...]], info: Callable[[], Ready | None]) -> None:
        for name, text, read in (
            (
                "wisp_startup_seconds",
                "Time each start-up phase took.",
                lambda: [({"phase": phase.name}, phase.seconds) for phase in phases()],
            ),
            (
                "wisp_memory_bytes",
                "Memory of the device by part, as planned.",
                lambda: readings.memory(info()),
            ),
            (
                "wisp_memory_available_bytes",
                "Memory that the server may use.",
                lambda: readings.available(info()),
            ),
        ):
            self.registry.add(Reading(name, text, read))

    def count_prompt(self, generated: Sequence[int]) -> None:
        """Count a prompt, whose choices have generated so many tokens each."""
        self.choices.observe(len(generated))
        self.longest_tokens.observe(max(generated))

    def start_timer(self, prompt_tokens: int, max_tokens: int) -> RequestTimer:
        """Start the timer of one sequence."""
        self.prompt_tokens.observe(prompt_tokens)
        self.max_tokens.observe(max_tokens)
        return RequestTimer(self, time.monotonic(), prompt_tokens)


class RequestTimer:
    """Timer of one sequence. Close it however the sequence ends.

    Attributes:
        reason: reason of the end.
        first_token_s: time from the sequence's admission to its first token; None before it.
        per_token_s: mean time of each further token; None before the end, and of fewer than two.
    """

    def __init__(self, telemetry: Telemetry, start_s: float, prompt_tokens: int) -> None:
        self._telemetry = telemetry
        self._start_s = self._last_s = self._closed_s = start_s
        self._prompt_tokens = prompt_tokens
        self._queued_s = 0.0
        self.reason = "abort"
        self.first_token_s: float | None = None
        self.per_token_s: float | None = None

    def token(self, now_s: float, event: TokenEvent) -> None:
        """Record a token."""
        self._telemetry.rate.add(now_s)
        if self.first_token_s is None:
            self._first(now_s, event)
        else:
            self._telemetry.gap_s.observe(now_s - self._last_s)
        self._last_s = now_s

    def _first(self, now_s: float, event: TokenEvent) -> None:
        self.first_token_s = now_s - self._start_s
        self._telemetry.first_token_s.observe(self.first_token_s)
        self._telemetry.computed_tokens.observe(self._prompt_tokens - event.cached_tokens)
        self._queued_s = min(event.queued_s, self.first_token_s)

    def finish(self, now_s: float, reason: str, tokens: int) -> None:
        """Record a regular end."""
        self.reason, telemetry = reason, self._telemetry
        run_s = now_s - self._start_s
        telemetry.sequence_s.observe(run_s)
        telemetry.generation_tokens.observe(tokens)
        if self.first_token_s is None:
            return
        decode_s = run_s - self.first_token_s
        telemetry.queue_s.observe(self._queued_s)
        telemetry.prefill_s.observe(self.first_token_s - self._queued_s)
        telemetry.decode_s.observe(decode_s)
        telemetry.inference_s.observe(run_s - self._queued_s)
        if tokens > 1:
            self.per_token_s = decode_s / (tokens - 1)
            telemetry.token_s.observe(self.per_token_s)

    def fail(self, reason: str) -> None:
        """Record an end without an answer, by the engine's name of its reason."""
        self.reason = reason

    def close(self) -> None:
        """Count the sequence by its reason; with neither :meth:`finish` nor :meth:`fail`, it was aborted."""
        self._telemetry.finished.add(finished_reason=self.reason)
        self._closed_s = time.monotonic()

    def phases(self) -> list[tuple[str, float, float]]:
        """Return the phases of a closed timer that began: name, begin and end on the monotonic clock."""
        queue, first_s = ("queue", self._start_s, self._start_s + self._queued_s), self.first_token_s
        if first_s is None:
            return [("queue", self._start_s, self._closed_s)]
        first_s += self._start_s
        return [queue, ("prefill", queue[2], first_s), ("decode", first_s, max(first_s, self._closed_s))]
