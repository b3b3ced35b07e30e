"""Thinking ends once its budget is spent, by its marker, and a rule on the answer begins behind it."""

import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.constrained.masks import TokenMask, rows_of
from wisp_runtime.engine.constrained.thinking import LEADING_TOKENS, BoundedThinking
from wisp_runtime.engine.scheduling.admission import refusal
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.transport.messages import SamplingParams, Submit, ThinkingRule

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from test_grammars import LIST, asked, serve
from toy_engine import EOS, VOCAB, ToyRule
from toy_grammar import text_of

ALL = set(range(VOCAB))
OPEN, CLOSE = (7,), (8,)  # "a", "b"
LONG_OPEN, LONG_CLOSE = (10, 7), (11, 8, 10)


def rule(opening=OPEN, closing=CLOSE, **fields):
    return ThinkingRule((opening,), (closing,), **fields)


def allowed(mask):
    rows = rows_of([mask])
    if rows is None:
        return ALL
    row = rows[0]
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), count=VOCAB, bitorder="little")).tolist())


def sets_along(tokens, thinking, answer=None):
    """Return the sets of tokens that may come, before each of ``tokens`` and behind the last."""
    mask = TokenMask(BoundedThinking(thinking, answer, {EOS}), {EOS}, VOCAB)
    sets = [allowed(mask)]
    for token in tokens:
        mask.advance(token)
        sets.append(allowed(mask))
    return sets, mask


@pytest.mark.parametrize(
    ("thinking", "tokens", "forced"),
    [
        (rule(is_open=True, max_tokens=2), [1, 1], {2: 8}),
        (rule(is_open=True, max_tokens=0), [], {0: 8}),
        (rule(is_open=True, max_tokens=3), [1, 8, 1, 1], {}),  # closed before
        (rule(is_open=True), [1] * 20, {}),  # no budget
        (rule(max_tokens=2), [7, 1, 1], {3: 8}),  # the marker does not count
        (rule(max_tokens=2), [5, 7, 1, 1], {4: 8}),  # whitespace in front of it
        (rule(max_tokens=2), [1, 1, 1, 1, 1, 7, 1, 1, 1], {}),  # too late: it is text
        (rule(max_tokens=0), [7], {1: 8}),
        (rule(max_tokens=2), [1, 1, 1], {}),  # a model that does not think
        (rule(may_reopen=True, max_tokens=2), [1] * 9 + [7, 1, 1], {12: 8}),
        (rule(may_reopen=True, max_tokens=2), [7, 1, 8, 5, 7, 1], {6: 8}),  # one budget for both
        (rule(LONG_OPEN, LONG_CLOSE, max_tokens=2), [10, 7, 1, 1, 11, 8], {4: 11, 5: 8, 6: 10}),
        (rule(LONG_OPEN, LONG_CLOSE, max_tokens=2), [10, 7, 1, 11, 8], {4: 8, 5: 10}),  # begun by the model
        (rule(LONG_OPEN, LONG_CLOSE, max_tokens=9), [10, 7, 1, 11, 8, 10, 1, 1, 1, 1], {}),
        (ThinkingRule((OPEN,), ((8,), (9, 8)), is_open=True, max_tokens=3), [9, 8, 1, 1, 1], {}),
    ],
)
def test_the_closing_marker_is_forced_once_the_budget_is_spent(thinking, tokens, forced):
    sets, _ = sets_along(tokens, thinking)
    assert {place: tokens for place, tokens in enumerate(sets) if tokens != ALL} == {
        place: {token} for place, token in forced.items()
    }


@pytest.mark.parametrize(
    ("tokens", "is_over"),
    [
        ([7, 1], False),
        ([7, 1, 8], True),
        ([7, 1, 1, 8], True),  # forced
        ([1] * (LEADING_TOKENS + 1), True),  # it does not think
        ([1], False),
    ],
)
def test_a_rule_that_can_forbid_nothing_more_is_over(tokens, is_over):
    assert sets_along(tokens, rule(max_tokens=2))[1].is_over is is_over


@pytest.mark.parametrize(
    ("thinking", "tokens", "is_free"),
    [
        (rule(is_open=True), [1] * 30, True),
        (rule(is_open=True, max_tokens=9), [1] * 7, True),
        (rule(is_open=True, max_tokens=9), [1] * 8, False),  # the token behind the next one is forced
        (rule(max_tokens=1), [], False),
        (rule(max_tokens=2), [], True),  # the marker comes first
        (rule(may_reopen=True, max_tokens=2), [7, 1, 8], False),
    ],
)
def test_no_mask_is_computed_while_the_budget_is_far(thinking, tokens, is_free):
    sets, mask = sets_along(tokens, thinking)
    assert mask.is_free is is_free
    assert (rows_of([mask]) is None) == is_free
    assert sets[-1] == ALL
    assert not sets_along(tokens, thinking, lambda: ToyRule("thirds"))[1].is_free


THIRDS = {token for token in range(VOCAB) if token % 3}


def test_a_rule_on_the_answer_holds_behind_thinking_which_cannot_end_the_answer():
    made = []

    def answer():
        made.append(ToyRule("thirds"))
        return made[-1]

    sets, mask = sets_along([1, 1, 8, 1], rule(is_open=True, max_tokens=2), answer)
    assert sets == [ALL - {EOS}, ALL - {EOS}, {8}, THIRDS, {token for token in ALL if (token + 1) % 3}]
    assert made[-1].generated == [1]
    assert not mask.is_over


@pytest.mark.parametrize(
    ("opening", "tokens", "sets"),
    [
        ((6,), [], [THIRDS | {6}]),  # thinking, or the answer at once
        ((6,), [6], [THIRDS | {6}, ALL - {EOS}]),
        ((6,), [1], [THIRDS | {6}, {token for token in ALL if (token + 1) % 3}]),
        ((4,), [4], [THIRDS, ALL - {EOS}]),  # a marker of one token is a marker
        ((6, 9), [6], [THIRDS | {6}, {9}]),  # no answer begins so: the rest is forced
        ((4, 9), [4, 1], [THIRDS, {t for t in ALL if (t + 4) % 3} | {9}, {t for t in ALL if (t + 5) % 3}]),
        ((4, 9), [4, 9], [THIRDS, {t for t in ALL if (t + 4) % 3} | {9}, ALL - {EOS}]),
    ],
)
def test_an_answer_with_a_rule_may_begin_with_thinking(opening, tokens, sets):
    assert sets_along(tokens, rule(opening), lambda: ToyRule("thirds"))[0] == sets


@pytest.mark.parametrize("runner", ["cpu", "device"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_engine_ends_thinking_and_follows_the_grammar_behind_it(runner, temperature):
    bounds = {"budget": rule(is_open=True, max_tokens=5), "none": rule(is_open=True, max_tokens=0)}
    requests = [
        asked(f"{name}{seed}", LIST, seed=seed, temperature=temperature, max_tokens=50, thinking=bound)
        for name, bound in bounds.items()
        for seed in range(4)
    ]
    tokens, ends, _ = serve(requests, runner=runner)
    for name, generated in tokens.items():
        thinking, _, answer = text_of(generated).partition("b")
        assert generated.index(8) <= (5 if name.startswith("budget") else 0), (name, generated)
        assert ends[name][0] in ("stop", "length")
        if ends[name][0] == "stop":
            assert re.fullmatch(r"\[([12][012]?(,[12][012]?)*)?\]", answer), (thinking, answer)


@pytest.mark.parametrize("runner", ["cpu", "device"])
def test_the_engine_ends_thinking_without_a_grammar_beside_others(runner):
    params = SamplingParams(temperature=1.0)
    bound = rule(LONG_OPEN, LONG_CLOSE, is_open=True, max_tokens=3)
    requests = [Submit(f"t{n}", (1, 2, 3 + n), 30, params, ignore_eos=True, thinking=bound) for n in range(4)]
    plain = [Submit(f"p{n}", (1, 2, 3 + n), 30, params, ignore_eos=True) for n in range(4)]
    tokens, _, _ = serve([*requests, *plain], runner=runner)
    alone, _, _ = serve(plain, runner=runner)
    for request in requests:
        generated = tokens[request.request_id]
        assert any(generated[at : at + 3] == list(LONG_CLOSE) for at in range(4)), generated
        assert len(generated) == 30
    assert {name: tokens[name] for name in alone} == alone


@pytest.mark.parametrize("runner", ["cpu", "device"])
def test_preemption_changes_no_thinking(runner):
    params = SamplingParams(temperature=1.0)
    requests = [
        Submit(
            f"t{n}", (1, 2, n), 40, params, ignore_eos=True, thinking=rule(is_open=n % 2 == 0, max_tokens=n)
        )
        for n in range(8)
    ]
    ample, _, calm = serve(requests, runner=runner, blocks=400)
    scarce, _, pressed = serve(requests, runner=runner, blocks=24)
    assert (calm.load.preemptions_total, pressed.load.preemptions_total > 0) == (0, True)
    assert scarce == ample


def test_whatever_the_model_samples_thinking_ends_within_its_budget():
    random_of = random.Random(17)
    for _ in range(300):
        budget, is_open, may_reopen = (
            random_of.randrange(6),
            random_of.random() < 0.5,
            random_of.random() < 0.3,
        )
        opening, closing = random_of.choice([(OPEN, CLOSE), (LONG_OPEN, LONG_CLOSE)])
        bound = rule(opening, closing, is_open=is_open, may_reopen=may_reopen, max_tokens=budget)
        answer = random_of.choice([None, lambda: ToyRule("thirds")])
        mask = TokenMask(BoundedThinking(bound, answer, {EOS}), {EOS}, VOCAB)
        generated = []
        for _ in range(24):
            generated.append(random_of.choice(sorted(allowed(mask))))
            mask.advance(generated[-1])
            if mask.is_over:
                break
        text = ",".join(map(str, generated))
        begin, end = (",".join(map(str, marker)) for marker in (opening, closing))
        thinking = (
            text if is_open else text.partition(begin)[2].lstrip(",") if text.startswith(begin) else None
        )
        if thinking is not None:
            ended, marker, _ = thinking.partition(end)
            assert marker, (bound, generated)
            assert len(list(filter(None, ended.split(",")))) <= budget, (bound, generated)


@pytest.mark.parametrize(
    ("thinking", "says"),
    [
        (rule((VOCAB,)), f"outside 0 … {VOCAB - 1}"),
        (rule(closing=(-1,)), "outside 0"),
        (rule(()), "has no tokens"),
        (ThinkingRule((), (CLOSE,)), "has no tokens"),
        (rule(), None),
    ],
)
def test_markers_that_are_no_tokens_are_refused(thinking, says):
    limits = Limits(one_pool(8, 4), vocab=VOCAB, max_step_tokens=8, max_concurrent=2, max_context=16)
    why = refusal(Submit("a", (1,), 2, thinking=thinking), limits)
    assert (says is None and why is None) or says in why
