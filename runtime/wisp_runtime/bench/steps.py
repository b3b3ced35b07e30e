"""Benchmarks of an engine in this process: decode steps, first tokens, prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from wisp_plan.weights.expert_reads import Hits, uniform_hits
from wisp_runtime.bench.baselines.published import with_baseline
from wisp_runtime.bench.contexts import insert_prefixes, make_prompts
from wisp_runtime.bench.experts import HitCounter
from wisp_runtime.bench.harness import Round, Script, requests_of, run_script
from wisp_runtime.bench.record import Row, Spread
from wisp_runtime.bench.roofline import ceiling_of, decode_lower_bound_s, prefill_lower_bound_s
from wisp_runtime.bench.target import Target
from wisp_runtime.errors import EngineFailed

WARM_UP_STEPS = 32
"""Decode steps that are not counted: graphs are captured, clocks rise."""

WARM_UP_ROUNDS = 2
_SUFFIX_TOKENS = 16


def decode_row(target: Target, *, batch: int, context: int, steps: int, sampling: dict[str, float]) -> Row:
    """Measure the step that decodes ``batch`` sequences of ``context`` tokens each.

    Args:
        batch: number of sequences.
        context: tokens of each when it starts to decode; it grows by a token a step, as served.
        steps: steps to measure, after the warm-up.
        sampling: sampling parameters; temperature 0 is greedy.
    """
    scheduler, rounds = target.scheduler(), list[Round]()
    prompts = make_prompts(batch, context, target.spec.vocab, seed=1)
    insert_prefixes(scheduler, prompts)

    def script() -> Script:
        tokens = WARM_UP_STEPS + steps + 2  # the first comes with the prompt, the last closes an interval
        rounds.append((yield requests_of(prompts, tokens, "decode", **sampling)))

    mean_context = context + WARM_UP_STEPS + steps / 2
    sizes = batch, int(batch * mean_context)
    counter = HitCounter(target.expert_load, target.spec, target.routed_rows(*sizes), skip=WARM_UP_STEPS)
    run_script(script(), scheduler, target.runner, counter.on_output)
    times = rounds[0].steps_ms(batch, WARM_UP_STEPS)[:steps]
    if not times:
        raise EngineFailed(
            f"no step decoded all {batch} sequences at once: the KV cache is too small for them."
        )
    hits = counter.hits()
    bound = _lower_bound_ms(target, batch=batch, context=mean_context, hits=hits)
    spread = Spread.of(times)
    more = spread.to_dict() | {"steps": len(times), "tokens_per_s": 1e3 * batch / spread.median}
    if hits is not None:
        more |= _experts(hits, uniform_hits(target.spec, batch))
    path = target.strategy.path_of(*sizes)
    if path == "general":
        more |= {"why": target.strategy.why_not_persistent(*sizes)}
    row = target.row(
        "decode_step_ms", spread.median, path=path, batch=batch, context=context, lower_bound=bound, **more
    )
    return with_baseline(row, target.gpu)


def first_token_rows(
    target: Target, *, prompts: Sequence[int], repeats: int, is_cached: bool
) -> Iterator[Row]:
    """Measure the time from a request to its first token, on an idle engine.

    Args:
        prompts: prompt lengths, a row each.
        repeats: requests a row; no prompt is in the prefix cache.
        is_cached: all but the last 16 tokens of each prompt were computed before, by another request.
    """
    for length in prompts:
        scheduler, rounds = target.scheduler(), list[Round]()
        script = _cached_script if is_cached else _fresh_script
        run_script(script(target, length, repeats, rounds), scheduler, target.runner)
        spread = Spread.of([1e3 * each.first_token_s for each in rounds])
        cached = rounds[-1].outputs[-1].cached_tokens
        bound_s = _prefill_lower_bound_s(target, sequences=1, prompt=length, cached=cached)
        more = spread.to_dict() | {"repeats": repeats} | ({"cached": cached} if cached else {})
        bound_ms = None if bound_s is None else 1e3 * bound_s
        row = target.row("first_token_ms", spread.median, context=length, lower_bound=bound_ms, **more)
        yield with_baseline(row, target.gpu)


def prefill_row(target: Target, *, batch: int, prompt: int, repeats: int) -> Row:
    """Measure the prompt tokens computed a second when ``batch`` prompts arrive together."""
    scheduler, rounds = target.scheduler(), list[Round]()

    def script() -> Script:
        for number in range(1 + repeats):
            prompts = make_prompts(batch, prompt, target.spec.vocab, seed=100 + number)
            rounds.append((yield requests_of(prompts, 1, f"prefill-{number}", temperature=0.0)))

    run_script(script(), scheduler, target.runner)
    spread = Spread.of([batch * prompt / each.seconds for each in rounds[1:]])
    bound_s = _prefill_lower_bound_s(target, sequences=batch, prompt=prompt)
    bound = None if bound_s is None else batch * prompt / bound_s
    more = spread.to_dict() | {"repeats": repeats, "batch": batch, "context": prompt, "lower_bound": bound}
    row = target.row("prefill_tokens_per_s", spread.median, **more)
    return with_baseline(row, target.gpu)


def _fresh_script(target: Target, length: int, repeats: int, rounds: list[Round]) -> Script:
    for number in range(WARM_UP_ROUNDS + repeats):
        prompts = make_prompts(1, length, target.spec.vocab, seed=1000 + number)
        done = yield requests_of(prompts, 1, f"first-{number}", temperature=0.0)
        if number >= WARM_UP_ROUNDS:
            rounds.append(done)


def _cached_script(target: Target, length: int, repeats: int, rounds: list[Round]) -> Script:
    vocab = target.spec.vocab
    for number in range(1 + repeats):
        (prefix,) = make_prompts(1, length - _SUFFIX_TOKENS, vocab, seed=2000 + number)
        first, second = make_prompts(2, _SUFFIX_TOKENS, vocab, seed=3000 + number)
        yield requests_of([prefix + first], 1, f"cold-{number}", temperature=0.0)
        done = yield requests_of([prefix + second], 1, f"warm-{number}", temperature=0.0)
        if number:
            rounds.append(done)


def _experts(hits: Hits, uniform: Hits) -> dict[str, float]:
    """Return the mean of the experts hit in a layer, as measured, and as uniform routing hits them."""
    return {"experts_hit": mean(hits.values()), "experts_hit_uniform": mean(uniform.values())}


def _lower_bound_ms(target: Target, *, batch: int, context: float, hits: Hits | None) -> float | None:
    ceiling = ceiling_of(target.gpu)
    if ceiling is None:
        return None
    held: dict[str, Any] = {"weights": target.fit.quantization, "kv": target.fit.kv, "hits": hits}
    return 1e3 * decode_lower_bound_s(target.spec, ceiling, batch=batch, context=context, **held)


def _prefill_lower_bound_s(target: Target, *, sequences: int, prompt: int, cached: int = 0) -> float | None:
    ceiling = ceiling_of(target.gpu)
    if ceiling is None:
        return None
    held: dict[str, Any] = {"weights": target.fit.quantization, "kv": target.fit.kv}
    return prefill_lower_bound_s(
        target.spec, ceiling, sequences=sequences, prompt=prompt, cached=cached, **held
    )
