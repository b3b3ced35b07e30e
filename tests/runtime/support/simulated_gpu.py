"""The engine's loop over a scheduler alone: steps take the time that an H200 takes for a Llama-3-8B.

No model, no clock: a step's duration follows from its plan. As in ``engine/loop.py``, a step is planned and
launched while the one before runs, and requests that come meanwhile are taken in before the next plan.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.plan import Plan, SampledToken
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Submit, TokenEvent

DECODE_MS = ((1, 3.94), (8, 3.95), (16, 4.14), (32, 4.83), (64, 6.14), (128, 7.8), (256, 12.8))
"""Decode steps at a context of 512: docs/performance.md, "A decode step, as served"."""
CONTEXT_MS = 3.3e-5
"""Time for a token of a decoding sequence's context: 16 sequences of 512 and of 7,900 tokens, same table."""
PREFILL_MS, TOKEN_MS, ATTENTION_MS, MIN_PREFILL_MS = 1.9, 0.0215, 1.06e-6, 5.9
"""Steps with prompts: fits 128, 512, 2,048 and 7,900 tokens of "From a request to its first token"."""


def step_s(plan: Plan) -> float:
    """Return the seconds that the step of ``plan`` takes."""
    contexts = sum(chunk.start + 1 for chunk in plan if chunk.kind is StepKind.DECODE)
    decodes = sum(chunk.kind is StepKind.DECODE for chunk in plan)
    if decodes == len(plan):
        return (_decode_ms(decodes) + CONTEXT_MS * max(0, contexts - 512 * decodes)) / 1e3
    tokens = sum(chunk.tokens for chunk in plan)
    attended = sum(
        chunk.tokens * (chunk.start + chunk.tokens / 2) for chunk in plan if chunk.kind is StepKind.PREFILL
    )
    linear_ms = max(MIN_PREFILL_MS, PREFILL_MS + TOKEN_MS * tokens)
    return (linear_ms + ATTENTION_MS * attended + CONTEXT_MS * contexts) / 1e3


def _decode_ms(sequences: int) -> float:
    index = bisect_left(DECODE_MS, (sequences, 0.0))
    if index == 0 or index == len(DECODE_MS):
        return DECODE_MS[min(index, len(DECODE_MS) - 1)][1]
    (below, low), (above, high) = DECODE_MS[index - 1 : index + 1]
    return low + (high - low) * (sequences - below) / (above - below)


@dataclass
class Outcome:
    """Observations of one simulated run.

    Attributes:
        tokens_s: times of each request's tokens.
        finish: reason why each request ended.
        steps: number of steps.
        durations_s: duration of each step that computed prompts while sequences decoded.
        end_s: time of the last step's end.
        prompt_tokens: prompt tokens computed.
    """

    tokens_s: dict[str, list[float]] = field(default_factory=dict)
    finish: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    durations_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    prompt_tokens: int = 0

    def count(self, plan: Plan, duration_s: float) -> None:
        """Count a step."""
        self.steps += 1
        if len({chunk.kind for chunk in plan}) > 1:
            self.durations_s.append(duration_s)

    def take(self, events: Iterable[TokenEvent | None], now_s: float) -> None:
        """Note the events of a step that ended at ``now_s``."""
        self.end_s = now_s
        for event in events:
            if event is not None and event.token is not None:
                self.tokens_s[event.request_id].append(now_s)
            if event is not None and event.finish:
                self.finish[event.request_id] = event.finish

    def first_s(self, name: str, since_s: float) -> float:
        """Return the time from ``since_s`` to the first token of a request."""
        return self.tokens_s[name][0] - since_s

    def gaps_s(self, names: Iterable[str]) -> list[float]:
        """Return all times between two tokens of the named requests, ascending."""
        times = [self.tokens_s[name] for name in names]
        return sorted(after - before for of in times for before, after in pairwise(of))


def simulate(
    scheduler: Scheduler,
    arrivals: list[tuple[float, Submit]],
    *,
    until_s: float = math.inf,
    step_time: Callable[[Plan], float] = step_s,
) -> Outcome:
    """Serve ``arrivals``, (seconds, request) in order, until all have ended or ``until_s``."""
    outcome, now_s, pending = Outcome(), 0.0, list(reversed(arrivals))
    in_flight: Plan = ()
    for _, request in arrivals:
        outcome.tokens_s[request.request_id] = []
    while now_s < until_s and (pending or in_flight or not scheduler.is_idle):
        if not in_flight and scheduler.is_idle:
            now_s = max(now_s, pending[-1][0])
        events: list[TokenEvent | None] = [*scheduler.expire(now_s)]
        while pending and pending[-1][0] <= now_s:
            events.append(scheduler.submit(pending.pop()[1], now_s))
        completed, in_flight = in_flight, scheduler.plan(now_s)
        if completed:
            duration_s = step_time(completed)
            now_s += duration_s
            outcome.count(completed, duration_s)
            scheduler.observe(completed, duration_s)
            tokens = [SampledToken(7)] * sum(chunk.samples for chunk in completed)
            events += scheduler.commit(completed, tokens)
        outcome.take(events, now_s)
    outcome.prompt_tokens = scheduler.load.prompt_tokens_total
    return outcome
