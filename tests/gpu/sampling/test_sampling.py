"""Sampling on the GPU against the reference implementation in NumPy: rules, combinations, invariances."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

sys.path.insert(0, str(Path(__file__).parent))
from sampling_cases import Bench, compare, logits_of, mixed  # noqa: E402
from sampling_rows import batch  # noqa: E402

from wisp_runtime.batch import SamplingBatch  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import to_device  # noqa: E402
from wisp_runtime.ops.cuda.sampling.sampler import Sampler  # noqa: E402
from wisp_runtime.ops.reference import sample  # noqa: E402

NAN = np.float32(np.nan)
LAUNCHES = 2 if "WISP_SANITIZER" in os.environ else 80  # a sanitizer makes kernels a hundred times slower


@pytest.mark.parametrize(
    ("vocab", "rows", "rounds"),
    [
        (8, 7, 40),
        (1000, 64, 4),
        (1001, 3, 20),  # rows that do not start at 16 bytes
        (32000, 7, 6),
        (128256, 1, 12),  # 63 blocks a row
        (128256, 64, 1),
        (151936, 2, 6),
        (262144, 7, 1),
        (1000, 256, 1),
    ],
)
def test_every_combination_of_rules_samples_as_the_reference(device, random, vocab, rows, rounds):
    bench = Bench(device, vocab, rows)
    differing = 0
    for number in range(rounds):
        sampling = mixed(random, rows, vocab, has_masks=number % 2 == 1)
        differing += compare(bench, logits_of(random, rows, vocab), sampling)
    assert differing <= 0.005 * rows * rounds


RULES = [
    {},
    {"temperature": 0.0},
    {"temperature": 1e-3},
    {"temperature": 1e3},
    {"temperature": 1e-38},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 1e-7},
    {"top_p": 0.0},
    {"top_p": 0.999999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.8},
    {"top_k": 3000, "top_p": 0.5, "min_p": 0.01, "temperature": 0.8},
    {"top_k": 20000, "top_p": 0.99, "temperature": 2.0},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_each_rule_alone_samples_as_the_reference(device, random, rule, spread):
    logits = random.standard_normal((8, 32000), np.float32) * np.float32(spread)
    assert compare(Bench(device, 32000, 8), logits, batch(8, **rule)) == 0


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("kind", ["equal", "two values", "too close for bins", "beyond the bins"])
def test_rows_with_more_candidates_than_a_block_sorts_are_truncated_exactly(device, random, rule, kind):
    logits = {
        "equal": np.zeros((2, 20000), np.float32),
        "two values": random.integers(0, 2, (2, 20000)).astype(np.float32),
        "too close for bins": 5 + 1e-4 * random.standard_normal((2, 20000), np.float32),
        "beyond the bins": np.where(np.arange(20000) == 77, 4000, 1000 * random.random((2, 20000))),
    }[kind].astype(np.float32)
    assert compare(Bench(device, 20000, 2), logits, batch(2, **rule)) == 0


@pytest.mark.parametrize(
    "row",
    [
        [0.0, 3.0, 1.0, 3.0],
        [-0.0, 0.0, -1.0, 0.0],  # the two zeros are equal
        [-np.inf, -7.0, -np.inf, -np.inf],
        [-np.inf] * 4,  # nothing is possible: the first, and not sound
        [0.0, NAN, 9.0, NAN],  # the first of those, and not sound
        [0.0, -NAN, np.inf, 1.0],
        [0.0, 1.0, np.inf, np.inf],
        [3e38, -3e38, 3e38, 0.0],  # the difference overflows
        [1e-40, 2e-40, 0.0, -1e-40],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "rule", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.9}], ids=str
)
def test_equal_and_non_finite_logits_are_sampled_as_by_the_reference(device, row, rule):
    logits = np.array([row, [1.0, 0.0, 0.5, 0.25]], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert compare(Bench(device, 4, 2), logits, batch(2, **rule)) == 0


def test_a_mask_with_one_token_or_none_decides_alone(device, random):
    logits = random.standard_normal((3, 1000), np.float32)
    logits[1, 5] = np.nan  # cannot be chosen, so it does not matter
    mask = np.zeros((3, 32), np.uint32)
    mask[0, 700 // 32], mask[1, 31] = 1 << 700 % 32, 1 << 7
    for rule in ({"temperature": 0.0}, {}, {"top_p": 0.5, "top_k": 9}):
        tokens, is_sound, *_ = Bench(device, 1000, 3).sample(logits, batch(3, bitmask=mask, **rule))
        assert tokens.tolist() == [700, 999, 0]
        assert is_sound.tolist() == [1, 1, 1]  # as the engine asks: is the raw logit of that token a number


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("vocab", [33, 1001, 128256])
def test_a_repetition_penalty_changes_rows_that_have_one_and_their_seen_tokens_alone(
    device, random, vocab, temperature
):
    logits = random.standard_normal((4, vocab), np.float32) * np.float32(4)
    seen = random.integers(0, 1 << 32, (4, -(-vocab // 32)), np.uint32)
    penalties = np.array([1, 1.3, 0.7, 1], np.float32)
    bench = Bench(device, vocab, 4)
    repeating = batch(4, temperature=temperature, repetition_penalty=penalties, seen=seen)
    assert compare(bench, logits, repeating) == 0
    tokens, *_ = bench.sample(logits, repeating)
    plain, *_ = bench.sample(logits, batch(4, temperature=temperature))  # the tokens seen are not sent again
    assert tokens[[0, 3]].tolist() == plain[[0, 3]].tolist()
    every = np.full_like(seen, 0xFFFFFFFF)
    assert compare(bench, logits, replace(repeating, repetition_penalty=penalties + 9, seen=every)) == 0


def test_a_row_samples_the_same_bits_alone_batched_and_again(device, random):
    logits = logits_of(random, 64, 32000)
    together = Bench(device, 32000, 80)
    sampling = replace(mixed(random, 64, 32000, has_masks=False), logprobs=5)
    first = together.sample(logits, sampling)
    for _ in range(3):
        for one, again in zip(first, together.sample(logits, sampling), strict=True):
            np.testing.assert_array_equal(one, again)
    for row in range(0, 64, 7):
        per_row = {name: getattr(sampling, name)[row : row + 1] for name in ROW_NAMES}
        alone = batch(1, **per_row, **lists_of(sampling, row), logprobs=5)
        for one, other in zip(first, together.sample(logits[row : row + 1], alone), strict=True):
            np.testing.assert_array_equal(one[row : row + 1], other)


ROW_NAMES = (
    *("temperature", "top_k", "top_p", "min_p", "seeds", "steps"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def lists_of(sampling: SamplingBatch, row: int) -> dict[str, np.ndarray]:
    counted, biased = (
        slice(*starts[row : row + 2]) for starts in (sampling.count_starts, sampling.bias_starts)
    )
    return {
        "count_starts": np.array([0, counted.stop - counted.start], np.int32),
        "count_ids": sampling.count_ids[counted],
        "counts": sampling.counts[counted],
        "bias_starts": np.array([0, biased.stop - biased.start], np.int32),
        "bias_ids": sampling.bias_ids[biased],
        "biases": sampling.biases[biased],
        "seen": sampling.seen[row : row + 1],
    }


def test_padding_rows_and_the_logits_are_left_as_they_are(device, random):
    host = logits_of(random, 8, 1000)
    host[5:] = np.nan
    bench, sampling = Bench(device, 1000, 16), mixed(random, 8, 1000, has_masks=True)
    bench.fill(sampling, live=5)
    logits = to_device(host)
    actual = bench.launch(logits, logprobs=3)
    np.testing.assert_array_equal(cp.asnumpy(logits), host)
    assert (cp.asnumpy(actual.tokens)[:5] >= 0).all()
    assert (cp.asnumpy(bench.sampler.sampled_tokens)[5:] == -1).all()
    assert (cp.asnumpy(actual.is_sound)[5:] == 0xFF).all()
    assert (cp.asnumpy(actual.top_ids)[5:] == -1).all()
    assert np.isnan(cp.asnumpy(actual.logprobs)[5:]).all()
    np.testing.assert_array_equal(cp.asnumpy(actual.tokens), cp.asnumpy(bench.sampler.sampled_tokens)[:8])


@pytest.mark.parametrize(("vocab", "listed"), [(8, 20), (1000, 0), (32000, 1), (128256, 20), (20000, 7)])
def test_log_probabilities_are_the_references(device, random, vocab, listed):
    logits = logits_of(random, 6, vocab)
    logits[1] = 2.5  # more equals than a block sorts
    logits[2, 7] = np.nan
    logits[3, : vocab - 3] = -np.inf  # a list of more than are possible
    sampling = replace(mixed(random, 6, vocab, has_masks=True), logprobs=listed)
    tokens, _, logprobs, top_ids, top_logprobs = Bench(device, vocab, 6).sample(logits, sampling)
    expect = sample(logits, sampling)
    sound = [0, 1, 3, 4, 5]
    assert np.isnan(logprobs[2])
    assert np.isnan(top_logprobs[2]).all()
    np.testing.assert_array_equal(top_ids[sound], expect.top_ids[sound])
    # Both sides are rounded to float32 once; the reference also sums in it: 1e-6 of the largest, 200.
    np.testing.assert_allclose(top_logprobs[sound], expect.top_logprobs[sound], rtol=2e-6, atol=1e-5)
    same = [row for row in sound if tokens[row] == expect.tokens[row]]
    assert len(same) >= 4
    np.testing.assert_allclose(logprobs[same], expect.logprobs[same], rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "kept"), [({}, 8), ({"temperature": 2.0}, 8), ({"top_p": 0.8}, 5), ({"top_k": 3}, 3)], ids=str
)
def test_tokens_come_as_often_as_their_probability_says(device, rule, kept):
    values = np.array([0.0, 1.0, -0.5, 0.3, 0.8, -1.0, 0.1, 0.5], np.float32)
    bench, rows, launches = Bench(device, 8, 250), 250, LAUNCHES
    logits, seen = np.tile(values, (rows, 1)), np.zeros(8)
    for number in range(launches):
        steps = np.arange(rows) + rows * number
        seen += np.bincount(bench.sample(logits, batch(rows, seeds=3, steps=steps, **rule))[0], minlength=8)
    weights = np.exp(values.astype(np.float64) / rule.get("temperature", 1.0))
    weights[np.argsort(-values)[kept:]] = 0
    expect = rows * launches * weights / weights.sum()
    assert seen[expect == 0].sum() == 0
    chi_square = ((seen - expect) ** 2 / np.maximum(expect, 1e-9))[expect > 0].sum()
    assert chi_square < 29.9  # 7 degrees of freedom exceed it once in 10,000


def test_a_captured_step_follows_its_parameters(device, random):
    bench = Bench(device, 128256, 4)
    logits = to_device(random.standard_normal((4, 128256), np.float32) * 3)
    host = cp.asnumpy(logits)
    bench.fill(batch(4))
    bench.launch(logits, 2)  # loads the kernels
    device.synchronize()
    device.stream.begin_capture()
    actual = bench.launch(logits, 2)
    graph = device.stream.end_capture()
    for rule in ({"top_p": 0.9}, {"temperature": 0.0}, {"top_k": 30, "steps": np.arange(4) + 9}):
        bench.fill(batch(4, **rule))
        graph.launch(device.stream)
        device.synchronize()
        np.testing.assert_array_equal(cp.asnumpy(actual.tokens), sample(host, batch(4, **rule)).tokens)


def test_steps_that_are_known_to_be_greedy_need_one_kernel(device, random):
    logits = random.standard_normal((5, 32000), np.float32)
    tokens, *_ = Bench(device, 32000, 8).sample(logits, batch(5, temperature=0.0), greedy=True)
    np.testing.assert_array_equal(tokens, logits.argmax(axis=1))


def test_arrays_that_do_not_fit_are_refused(device):
    bench = Bench(device, 1000, 4, entries=3)
    logits = to_device(np.zeros((4, 1000), np.float32))
    for wrong in (logits[:, :500], logits.view(np.int32), to_device(np.zeros((5, 1000), np.float32))):
        with pytest.raises(ShapeError):
            bench.launch(wrong)
    with pytest.raises(ShapeError):
        bench.launch(logits, 21)
    four = {"bias_starts": np.array([0, 4], np.int32), "bias_ids": np.arange(4, dtype=np.int32)}
    with pytest.raises(ShapeError, match="4 penalties and biases in a step, more than 3"):
        bench.fill(batch(1, biases=np.ones(4, np.float32), **four))
    with pytest.raises(ShapeError):
        bench.fill(batch(5))
    with pytest.raises(ShapeError):
        Sampler(device, 262145, 1)
