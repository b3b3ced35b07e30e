"""Choosing tokens: each knob as a table, and the distribution that comes out."""

from __future__ import annotations

import numpy as np
import pytest
from sampling_rows import batch

from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.reference.sampling import _adjust

OPS = CpuOps(threads=1)


def shares_of(logits: list[float], rows: int = 4000, **given) -> np.ndarray:
    """Sample ``rows`` times from the same logits; return each token's share."""
    sampling = batch(rows, seeds=11, **given)
    actual = OPS.sample(np.tile(np.array(logits, np.float32), (rows, 1)), sampling).tokens
    return np.bincount(actual, minlength=len(logits)) / rows


LOGITS = [2.0, 1.0, 0.0, -1.0, 1.5]


def shares(logits: list[float]) -> np.ndarray:
    weights = np.exp(np.array(logits) - np.max(logits))
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("given", "expect"),
    [
        ({}, shares(LOGITS)),
        ({"temperature": 0.5}, shares([2 * value for value in LOGITS])),
        ({"temperature": 4.0}, shares([value / 4 for value in LOGITS])),
        ({"top_k": 2}, [*shares([2.0, -np.inf, -np.inf, -np.inf, 1.5])]),
        ({"top_k": 1}, [1, 0, 0, 0, 0]),
        ({"top_k": 99}, shares(LOGITS)),  # more than there are keeps all
        ({"top_p": 0.7}, [*shares([2.0, -np.inf, -np.inf, -np.inf, 1.5])]),  # 0.46 + 0.28 first reach it
        ({"top_p": 0.4}, [1, 0, 0, 0, 0]),
        ({"top_p": 0.0}, [1, 0, 0, 0, 0]),  # at least one stays
        ({"min_p": 0.3}, [*shares([2.0, 1.0, -np.inf, -np.inf, 1.5])]),  # e^-1 = 0.37 of the best stays
        ({"min_p": 1.0}, [1, 0, 0, 0, 0]),
        # top_p counts what top_k left: 0.62 of the two reaches 0.5 alone
        ({"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0, 0]),
        ({"temperature": 1e-6}, [1, 0, 0, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(given, expect):
    # 4000 samples: three standard deviations of a share are below 0.024.
    np.testing.assert_allclose(shares_of(LOGITS, **given), expect, atol=0.024)


def test_a_large_flat_vocabulary_is_sampled_evenly():
    actual = shares_of([0.0] * 4096, rows=8192, top_p=0.999)
    assert (actual > 0).mean() > 0.8  # 1 - 1/e² of them, were each sampled twice on average
    assert actual.max() < 12 / 8192


def test_top_p_over_more_tokens_than_are_sorted_first_keeps_the_fewest_that_reach_it():
    logits = np.linspace(0, 1, 5000).tolist()  # no thousand of them reach 0.9
    actual = shares_of(logits, rows=3000, top_p=0.9)
    assert actual[:300].sum() == 0
    assert actual[900:].sum() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("logits", "expect"),
    [
        ([0.0, 3.0, 1.0], 1),
        ([2.0, 5.0, 5.0], 1),  # the lowest id among equals
        ([-np.inf, -7.0, -np.inf], 1),
        ([0.0, np.nan, 9.0], 1),  # shown to the engine, which ends that request
        ([0.0, 1.0, np.inf], 2),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_best_token_wins_where_nothing_is_left_to_chance(logits, expect, temperature):
    top_k = 1 if np.isfinite(logits).all() else 0
    actual = OPS.sample(np.array([logits], np.float32), batch(1, temperature=temperature, top_k=top_k))
    assert actual.tokens.tolist() == [expect]


def test_a_sampled_token_depends_on_its_seed_and_step_alone():
    random = np.random.default_rng(3)
    logits = random.standard_normal((6, 997)).astype(np.float32)
    seeds, steps = random.integers(0, 1 << 63, 6, dtype=np.uint64), np.arange(6) * 17
    together = OPS.sample(logits, batch(6, seeds=seeds, steps=steps, top_p=0.95)).tokens
    for row in range(6):
        some = slice(row, row + 1)
        alone = OPS.sample(logits[some], batch(1, seeds=seeds[some], steps=steps[some], top_p=0.95)).tokens
        assert alone[0] == together[row]
    again = OPS.sample(logits, batch(6, seeds=seeds + np.uint64(1), steps=steps, top_p=0.95)).tokens
    assert (again != together).any()


def test_a_known_seed_samples_known_tokens():
    """The race written out once more, slowly: what a kernel has to match."""
    from wisp_runtime.ops.reference import philox4x32

    logits = np.random.default_rng(8).standard_normal(101).astype(np.float32)
    actual = OPS.sample(
        logits[None], batch(1, seeds=np.array([12345], np.uint64), steps=np.array([42]))
    ).tokens[0]
    scores = []
    for token, logit in enumerate(logits.astype(np.float64)):
        word = philox4x32(np.array([[token // 4, 0, 42, 0]], np.uint32), (12345, 0))[0, token % 4]
        scores.append(logit - np.log(-np.log1p(-(int(word) + 0.5) / 2**32)))
    assert actual == np.argmax(scores)


PENALTY = {
    "count_starts": np.array([0, 0, 2], np.int32),
    "count_ids": np.array([0, 1], np.int32),
    "counts": np.array([1, 3], np.int32),
}


SEEN = {"seen": np.array([[0b000], [0b011]], np.uint32)}


def test_a_repetition_penalty_pushes_logits_of_either_sign_down():
    logits = np.array([[-2.0, -1.9, 3.0, 2.9, 0.0] + [-9.0] * 95], np.float32)
    seen = np.zeros((1, 4), np.uint32)
    seen[0, 0], seen[0, 3] = 0b10101, 1 << 99 % 32
    adjusted = _adjust(logits[0], batch(1, repetition_penalty=1.5, seen=seen), 0)
    expect = logits[0].copy()
    expect[[0, 2, 4, 99]] = [-3.0, 2.0, 0.0, -13.5]
    np.testing.assert_array_equal(adjusted, expect)
    assert adjusted.dtype == np.float32


@pytest.mark.parametrize(
    ("given", "expect"),
    [
        ({}, [0, 0]),
        # logits 2.0 1.9 1.5: presence takes 1 from both seen tokens of the second row
        (PENALTY | {"presence_penalty": 1.0}, [0, 2]),
        # frequency takes 0.1 once from token 0, three times from token 1
        (PENALTY | {"frequency_penalty": 0.1}, [0, 0]),
        (PENALTY | {"frequency_penalty": 0.4}, [0, 0]),
        (PENALTY | {"frequency_penalty": 0.6}, [0, 2]),
        (PENALTY | {"presence_penalty": -0.2, "frequency_penalty": -0.1}, [0, 1]),
        (
            {
                "bias_starts": np.array([0, 1, 3], np.int32),
                "bias_ids": np.array([2, 0, 1], np.int32),
                "biases": np.array([9.0, -100.0, 0.0], np.float32),
            },
            [2, 1],
        ),
        ({"bitmask": np.array([[0b110], [0b100]], np.uint32)}, [1, 2]),
        # the second row becomes 1.6 1.52 1.5, then 1.0 0.95 1.5; in the first nothing is seen
        (SEEN | {"repetition_penalty": 1.25}, [0, 0]),
        (SEEN | {"repetition_penalty": 2.0}, [0, 2]),
        (SEEN | {"repetition_penalty": 1.0}, [0, 0]),
        # repetition comes before presence and frequency: 2 / 1.25 - 0.2 is below 1.5
        (PENALTY | SEEN | {"repetition_penalty": 1.25, "presence_penalty": 0.2}, [0, 2]),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_penalties_bias_and_bitmask_change_the_choice_and_not_the_logits(given, expect, temperature):
    logits = np.tile(np.array([2.0, 1.9, 1.5], np.float32), (2, 1))
    before = logits.copy()
    assert OPS.sample(logits, batch(2, temperature=temperature, **given)).tokens.tolist() == expect
    np.testing.assert_array_equal(logits, before)


def test_a_bitmask_over_many_words_allows_exactly_its_bits():
    allowed = [3, 31, 32, 63, 64, 99]
    mask = np.zeros((1, 4), np.uint32)
    for token in allowed:
        mask[0, token // 32] |= np.uint32(1 << token % 32)
    rows = 500
    actual = shares_of([0.0] * 100, rows=rows, bitmask=np.repeat(mask, rows, axis=0))
    assert np.flatnonzero(actual).tolist() == allowed


def test_log_probabilities_are_of_the_model_and_best_first():
    logits = np.array([LOGITS, [0.0, 0.0, 0.0, 5.0, 0.0]], np.float32)
    actual = OPS.sample(logits, batch(2, temperature=0.0, logprobs=3))
    np.testing.assert_allclose(
        actual.logprobs, [np.log(shares(LOGITS)[0]), np.log(shares(logits[1])[3])], rtol=1e-5
    )
    assert actual.top_ids.tolist() == [[0, 4, 1], [3, 0, 1]]  # the lower id first among equals
    np.testing.assert_allclose(np.exp(actual.top_logprobs[0]), np.sort(shares(LOGITS))[::-1][:3], rtol=1e-5)
    none = OPS.sample(logits, batch(2, logprobs=0))
    assert (none.top_ids.shape, none.logprobs.shape) == ((2, 0), (2,))
    assert OPS.sample(logits, batch(2)).logprobs is None


def test_one_rows_nan_leaves_the_other_rows_log_probabilities_alone():
    logits = np.array([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]], np.float32)
    actual = OPS.sample(logits, batch(2, temperature=0.0, logprobs=2))
    assert actual.tokens.tolist() == [0, 2]
    assert actual.top_ids[1].tolist() == [2, 1]


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": np.ones(3, np.float32)},
        {"bitmask": np.ones((2, 2), np.uint32)},
        {"seen": np.ones((2, 2), np.uint32)},
        {"repetition_penalty": 1.5},  # without the tokens that it counts
        {"bias_starts": np.array([0, 0, 1], np.int32)},
        {
            "bias_starts": np.array([0, 0, 1], np.int32),
            "bias_ids": np.array([5], np.int32),
            "biases": np.ones(1, np.float32),
        },
    ],
)
def test_parameters_that_do_not_fit_the_logits_are_refused(given):
    with pytest.raises(ShapeError):
        OPS.sample(np.zeros((2, 5), np.float32), batch(2, **given))
