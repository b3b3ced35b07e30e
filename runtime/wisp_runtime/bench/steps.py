"""The measurements that need nothing but an engine in this process: decode steps, first tokens, prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wisp_runtime.bench.baselines.published import with_peer
from wisp_runtime.bench.contexts import make_prompts, place
from wisp_runtime.bench.harness import Round, Script, follow, requests_of
from wisp_runtime.bench.record import Row, Spread
from wisp_runtime.bench.roofline import ceiling_of, decode_floor_s, prefill_floor_s
from wisp_runtime.bench.target import Subject
from wisp_runtime.errors import EngineFailed

WARM_UP_STEPS = 32
"""Decode steps that are not counted: graphs are captured in them, clocks rise."""

WARM_UP_ROUNDS = 2
_SUFFIX_TOKENS = 16


def decode_row(subject: Subject, *, batch: int, context: int, steps: int, sampling: dict[str, float]) -> Row:
    """Measure the step that decodes ``batch`` sequences which began with ``context`` tokens.

    Args:
        batch: sequences.
        context: tokens each has when it starts to decode; it grows by a token a step, as served.
        steps: to measure, after the warm-up.
        sampling: parameters; temperature 0 is greedy.
    """
    scheduler, rounds = subject.scheduler(), list[Round]()
    prompts = make_prompts(batch, context, subject.spec.vocab, seed=1)
    place(scheduler, prompts)

    def script() -> Script:
        wanted = WARM_UP_STEPS + steps + 2  # the first comes with the prompt, the last closes an interval
        rounds.append((yield requests_of(prompts, wanted, "decode", **sampling)))

    follow(script(), scheduler, subject.runner)
    times = rounds[0].steps_ms(batch, WARM_UP_STEPS)[:steps]
    if not times:
        raise EngineFailed(
            f"no step decoded all {batch} sequences at once: the KV cache is too small for them."
        )
    mean_context = context + WARM_UP_STEPS + steps / 2
    floor = _floor_ms(subject, batch=batch, context=mean_context)
    spread = Spread.of(times)
    more = spread.to_dict() | {"steps": len(times), "tokens_per_s": 1e3 * batch / spread.median}
    path = subject.strategy.path_of(batch, int(batch * mean_context))
    row = subject.row(
        "decode_step_ms", spread.median, path=path, batch=batch, context=context, floor=floor, **more
    )
    return with_peer(row, subject.gpu)


def first_token_rows(
    subject: Subject, *, prompts: Sequence[int], repeats: int, is_cached: bool
) -> Iterator[Row]:
    """Measure the time from a request to its first token, on an idle engine.

    Args:
        prompts: tokens of a prompt, a row each.
        repeats: requests a row; each prompt is new to the prefix cache.
        is_cached: of each prompt all but the last 16 tokens were computed before, by another request.
    """
    for length in prompts:
        scheduler, rounds = subject.scheduler(), list[Round]()
        script = _cached_script if is_cached else _fresh_script
        follow(script(subject, length, repeats, rounds), scheduler, subject.runner)
        spread = Spread.of([1e3 * one.first_token_s for one in rounds])
        cached = rounds[-1].outputs[-1].cached_tokens
        floor = _prefill_floor_s(subject, sequences=1, prompt=length, cached=cached)
        more = spread.to_dict() | {"repeats": repeats} | ({"cached": cached} if cached else {})
        floor_ms = None if floor is None else 1e3 * floor
        row = subject.row("first_token_ms", spread.median, batch=1, context=length, floor=floor_ms, **more)
        yield with_peer(row, subject.gpu)


def prefill_row(subject: Subject, *, batch: int, prompt: int, repeats: int) -> Row:
    """Measure how many tokens of prompts a second are computed when ``batch`` prompts arrive together."""
    scheduler, rounds = subject.scheduler(), list[Round]()

    def script() -> Script:
        for number in range(1 + repeats):
            prompts = make_prompts(batch, prompt, subject.spec.vocab, seed=100 + number)
            rounds.append((yield requests_of(prompts, 1, f"prefill-{number}", temperature=0.0)))

    follow(script(), scheduler, subject.runner)
    spread = Spread.of([batch * prompt / one.seconds for one in rounds[1:]])
    floor_s = _prefill_floor_s(subject, sequences=batch, prompt=prompt)
    floor = None if floor_s is None else batch * prompt / floor_s
    more = spread.to_dict() | {"repeats": repeats}
    row = subject.row("prefill_tokens_per_s", spread.median, batch=batch, context=prompt, floor=floor, **more)
    return with_peer(row, subject.gpu)


def _fresh_script(subject: Subject, length: int, repeats: int, rounds: list[Round]) -> Script:
    for number in range(WARM_UP_ROUNDS + repeats):
        prompts = make_prompts(1, length, subject.spec.vocab, seed=1000 + number)
        done = yield requests_of(prompts, 1, f"first-{number}", temperature=0.0)
        if number >= WARM_UP_ROUNDS:
            rounds.append(done)


def _cached_script(subject: Subject, length: int, repeats: int, rounds: list[Round]) -> Script:
    vocab = subject.spec.vocab
    for number in range(1 + repeats):
        (prefix,) = make_prompts(1, length - _SUFFIX_TOKENS, vocab, seed=2000 + number)
        first, second = make_prompts(2, _SUFFIX_TOKENS, vocab, seed=3000 + number)
        yield requests_of([prefix + first], 1, f"cold-{number}", temperature=0.0)
        done = yield requests_of([prefix + second], 1, f"warm-{number}", temperature=0.0)
        if number:
            rounds.append(done)


def _floor_ms(subject: Subject, *, batch: int, context: float) -> float | None:
    ceiling = ceiling_of(subject.gpu)
    if ceiling is None:
        return None
    held = {"weights": subject.fit.quantization, "kv": subject.fit.kv_dtype}
    return 1e3 * decode_floor_s(subject.spec, ceiling, batch=batch, context=context, **held)


def _prefill_floor_s(subject: Subject, *, sequences: int, prompt: int, cached: int = 0) -> float | None:
    ceiling = ceiling_of(subject.gpu)
    if ceiling is None:
        return None
    held = {"weights": subject.fit.quantization, "kv": subject.fit.kv_dtype}
    return prefill_floor_s(subject.spec, ceiling, sequences=sequences, prompt=prompt, cached=cached, **held)
