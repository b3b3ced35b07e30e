"""Wisp's complete engine, with overlapping steps and graphs; its tokens are compared with float32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from parity_reference import Reference
from parity_run import on_stream_of

from wisp_runtime.bench.target import Target, TargetOptions, open_target
from wisp_runtime.engine import loop
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Shutdown, Submit


@dataclass(frozen=True)
class Explained:
    """Comparison of generated tokens with float32.

    Attributes:
        differences: number of steps at which float32 chooses another token.
        first: first of them, or None.
        largest_gap: maximum by which a chosen token's logit was below the best.
        noise: maximum difference of two logits by rounding to bf16: twice the largest error of one, on the
            same tokens.
    """

    differences: int
    first: int | None
    largest_gap: float
    noise: float


BATCH, CONTEXT = 32, 1024


def open_engine(folder: Path, device: str) -> Target:
    """Bring up the engine on the checkpoint in ``folder``; most of a GPU's memory stays for the reference."""
    wanted = TargetOptions(
        str(folder), device, BATCH, CONTEXT, kv_tokens=BATCH * CONTEXT, max_step_tokens=512
    )
    return open_target(wanted)


class Collecting:
    """Channel that sends requests at once and collects their tokens."""

    def __init__(self, requests: list[Submit]) -> None:
        self._requests = requests
        self.tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        self.preemptions = self.cached_tokens = 0

    def receive(self, *, waits: bool) -> list[Any]:
        """Give all requests, then the end."""
        if self._requests:
            requests, self._requests = self._requests, []
            return requests
        return [Shutdown()] if waits else []

    def send(self, message: Any) -> None:
        """Keep tokens; an error is one of the test."""
        for event in message.events:
            assert event.finish != "error", event.message
            self.tokens[event.request_id].append(event.token)
        self.preemptions = message.load.preemptions_total
        self.cached_tokens = message.load.cached_tokens_total


def generate(
    target: Target,
    prompts: list[list[int]],
    count: int,
    *,
    scheduler: Scheduler | None = None,
    name: str = "r",
) -> tuple[list[list[int]], Collecting]:
    """Continue ``prompts`` greedily by ``count`` tokens, all at once; also return what else was seen."""
    greedy = SamplingParams(temperature=0.0)
    requests = [
        Submit(f"{name}{number}", tuple(prompt), count, greedy, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]
    line = Collecting(requests)
    on_stream_of(target.ops)
    loop.run(line, scheduler or target.scheduler(), target.runner)
    return [line.tokens[request.request_id] for request in requests], line


def with_blocks(target: Target, blocks: int) -> Scheduler:
    """Return a scheduler that may use so few blocks."""
    cache = target.limits.cache
    pools = tuple(replace(pool, blocks=blocks) for pool in cache.pools)
    return Scheduler(replace(target.limits, cache=replace(cache, pools=pools)))


def explain(reference: Reference, prompt: list[int], tokens: list[int]) -> Explained:
    """Let float32 judge every token, each after the tokens that were really before it."""
    exact, noise = logits_after(reference, prompt, tokens)
    gaps = exact.max(axis=1) - exact[np.arange(len(tokens)), tokens]
    where = np.flatnonzero(gaps > 0)
    return Explained(len(where), int(where[0]) if len(where) else None, float(gaps.max()), noise)


def logits_after(reference: Reference, prompt: list[int], tokens: list[int]) -> tuple[np.ndarray, float]:
    """Return float32's logits ``[n, V]`` before each of ``tokens``, and the noise of bf16 in a gap of two."""
    before = prompt + tokens[:-1]
    exact = reference.see(before, "float32", logits=len(tokens)).logits
    rounded = reference.see(before, "rounded", logits=len(tokens)).logits
    return exact, 2 * float(np.abs(exact - rounded).max())


def difference(
    reference: Reference, prompt: list[int], one: list[int], other: list[int]
) -> tuple[int | None, float, float]:
    """Return the first step at which two answers differ, the gap of the tokens there, and bf16's noise."""
    step = next((n for n, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)
    if step is None:
        return None, 0.0, 0.0
    exact, noise = logits_after(reference, prompt, one[: step + 1])
    return step, float(abs(exact[-1, one[step]] - exact[-1, other[step]])), noise
