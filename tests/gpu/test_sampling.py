"""Drawing tokens on the GPU, against the twin in NumPy: each rule, their combinations, and what must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")

from wisp_runtime.batch import SamplingBatch  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.arrays import to_device  # noqa: E402
from wisp_runtime.ops.cuda.sampling import Sampler  # noqa: E402
from wisp_runtime.ops.reference import sample, token_words  # noqa: E402
from wisp_runtime.ops.reference.sampling import _adjust, _keep  # noqa: E402

pytestmark = pytest.mark.gpu

EDGE = 1e-6  # float32 weights: how far a sum of probabilities may be from float64's
KEY = 1e-5  # float32 race keys of up to 27: three roundings of 2e-6 each
NAN = np.float32(np.nan)


def batch(rows: int, **given) -> SamplingBatch:
    """Make parameters for ``rows`` rows, each neutral unless given."""
    neutral = {
        "temperature": np.ones(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "top_p": np.ones(rows, np.float32),
        "min_p": np.zeros(rows, np.float32),
        "seeds": np.arange(rows, dtype=np.uint64) + np.uint64(1 << 40),
        "steps": np.arange(rows, dtype=np.int64),
        "presence_penalty": np.zeros(rows, np.float32),
        "frequency_penalty": np.zeros(rows, np.float32),
        "count_starts": np.zeros(rows + 1, np.int32),
        "count_ids": np.zeros(0, np.int32),
        "counts": np.zeros(0, np.int32),
        "bias_starts": np.zeros(rows + 1, np.int32),
        "bias_ids": np.zeros(0, np.int32),
        "biases": np.zeros(0, np.float32),
    }
    filled = {
        name: np.full(rows, value, neutral[name].dtype) if np.isscalar(value) and name in neutral else value
        for name, value in given.items()
    }
    return SamplingBatch(**(neutral | filled))


class Bench:
    """A sampler with parameters of its own, whose scratch memory starts as NaN."""

    def __init__(self, device, vocab: int, max_rows: int, **options) -> None:
        self.device, self.vocab = device, vocab
        self.sampler = Sampler(device, vocab, max_rows, **options)
        self.sampler.reserve()
        for buffer in device.workspace.report():
            if buffer["name"].startswith("sampling.") and buffer["name"] != "sampling.arrived":
                memory = device.workspace.array(buffer["name"], (buffer["bytes"],), np.uint8)
                memory.data.memset_async(0xFF, memory.nbytes)
        self.parameters = to_device(np.full(self.sampler.parameter_bytes, 0xFF, np.uint8))

    def fill(self, sampling: SamplingBatch, live: int | None = None) -> None:
        host = np.full(self.sampler.parameter_bytes, 0xFF, np.uint8)
        view = self.sampler.host_view(host)
        self.sampler.fill(view, sampling)
        view.live[0] = len(sampling.temperature) if live is None else live
        self.parameters.set(host)

    def launch(self, logits, logprobs: int = -1, **options):
        return self.sampler.launch(logits, len(logits), self.parameters, logprobs=logprobs, **options)

    def draw(self, logits: np.ndarray, sampling: SamplingBatch, live: int | None = None, **options):
        """Return tokens, soundness and whatever was reported, on the host."""
        self.fill(sampling, live)
        found = self.launch(to_device(logits), sampling.logprobs, **options)
        names = ("tokens", "is_sound", "logprobs", "top_ids", "top_logprobs")
        arrays = (getattr(found, name) for name in names)
        return [None if array is None else cp.asnumpy(array) for array in arrays]


def is_explained(raw: np.ndarray, sampling: SamplingBatch, row: int, token: int) -> bool:
    """Return whether ``token`` wins if top-p lies EDGE elsewhere, or loses by less than KEY."""
    adjusted = _adjust(raw, sampling, row)
    for edge in (0, -EDGE, EDGE):
        moved = replace(sampling, top_p=sampling.top_p + np.float32(edge))
        kept, scaled = _keep(adjusted, moved, row)
        words = token_words(kept, int(sampling.seeds[row]), int(sampling.steps[row]))
        keys = scaled - np.log(-np.log1p(-(words + 0.5) * 2.0**-32))
        if token in kept and keys[kept == token][0] > keys.max() - KEY:
            return True
    return False


def compare(bench: Bench, logits: np.ndarray, sampling: SamplingBatch) -> int:
    """Require the twin's tokens and verdicts; return how many rows differ, each for a reason."""
    tokens, is_sound, *_ = bench.draw(logits, sampling)
    expect = sample(logits, sampling).tokens
    np.testing.assert_array_equal(is_sound, np.isfinite(logits[np.arange(len(logits)), expect]))
    differ = np.flatnonzero(tokens != expect)
    for row in differ:
        assert sampling.temperature[row] > 0, (row, tokens[row], expect[row])
        assert is_explained(logits[row], sampling, row, tokens[row]), (row, tokens[row], expect[row])
    return len(differ)


def ragged(random, rows: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ids of lists of 0 to 40 different tokens."""
    lengths = random.integers(0, min(vocab, 40) + 1, rows) * random.integers(0, 2, rows)
    ids = [random.choice(vocab, length, replace=False) for length in lengths]
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), np.concatenate(ids).astype(np.int32)


def mixed(random, rows: int, vocab: int, has_masks: bool) -> SamplingBatch:
    """Make parameters of every kind, in any combination."""
    count_starts, count_ids = ragged(random, rows, vocab)
    bias_starts, bias_ids = ragged(random, rows, vocab)
    bits = random.integers(0, 2, (rows, -(-vocab // 32) * 32))
    bits[random.random(rows) < 0.3] = 1
    bits[random.random(rows) < 0.1, 5:] = 0
    return batch(
        rows,
        temperature=random.choice([0, 1e-3, 0.3, 0.7, 1, 1, 1, 1.5, 1e3], rows).astype(np.float32),
        top_k=random.choice([0, 0, 0, 1, 5, 40, 1000, 30000, vocab], rows).astype(np.int32),
        top_p=random.choice([1, 1, 1, 0, 1e-5, 0.3, 0.9, 0.95, 0.9999], rows).astype(np.float32),
        min_p=random.choice([0, 0, 0, 0.05, 0.5, 1], rows).astype(np.float32),
        seeds=random.integers(0, 1 << 64, rows, np.uint64),
        steps=random.integers(0, 1 << 40, rows),
        presence_penalty=random.choice([0, 0.5, -1], rows).astype(np.float32),
        frequency_penalty=random.choice([0, 0.1, -0.3], rows).astype(np.float32),
        count_starts=count_starts,
        count_ids=count_ids,
        counts=random.integers(1, 9, len(count_ids)).astype(np.int32),
        bias_starts=bias_starts,
        bias_ids=bias_ids,
        biases=random.choice([-100, -1, 0.5, 3, 100], len(bias_ids)).astype(np.float32),
        bitmask=np.packbits(bits, axis=1, bitorder="little").view(np.uint32) if has_masks else None,
    )


def logits_of(random, rows: int, vocab: int) -> np.ndarray:
    """Make rows of every kind: narrow and wide, with few values, with tokens that cannot be, and peaked."""
    logits = random.standard_normal((rows, vocab), np.float32)
    logits *= random.choice([0.01, 1, 1, 3, 3, 30], (rows, 1)).astype(np.float32)
    kinds = random.integers(0, 5, rows)
    logits[kinds == 1] = np.round(logits[kinds == 1] * 16) / 16
    logits[kinds == 2, : vocab // 3] = -np.inf
    logits[kinds == 3, vocab // 2 : vocab // 2 + 3] += 12
    return logits + random.choice([0, -20, 7], (rows, 1)).astype(np.float32)


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
def test_every_combination_of_rules_draws_what_the_twin_draws(device, random, vocab, rows, rounds):
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
def test_each_rule_alone_draws_what_the_twin_draws(device, random, rule, spread):
    logits = random.standard_normal((8, 32000), np.float32) * np.float32(spread)
    assert compare(Bench(device, 32000, 8), logits, batch(8, **rule)) == 0


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("kind", ["equal", "two values", "too close for bins", "beyond the bins"])
def test_rows_with_more_candidates_than_a_block_sorts_are_cut_exactly(device, random, rule, kind):
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
def test_logits_that_are_equal_or_no_numbers_are_taken_as_the_twin_takes_them(device, row, rule):
    logits = np.array([row, [1.0, 0.0, 0.5, 0.25]], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert compare(Bench(device, 4, 2), logits, batch(2, **rule)) == 0


def test_a_mask_with_one_token_or_none_decides_alone(device, random):
    logits = random.standard_normal((3, 1000), np.float32)
    logits[1, 5] = np.nan  # cannot be chosen, so it does not matter
    mask = np.zeros((3, 32), np.uint32)
    mask[0, 700 // 32], mask[1, 31] = 1 << 700 % 32, 1 << 7
    for rule in ({"temperature": 0.0}, {}, {"top_p": 0.5, "top_k": 9}):
        tokens, is_sound, *_ = Bench(device, 1000, 3).draw(logits, batch(3, bitmask=mask, **rule))
        assert tokens.tolist() == [700, 999, 0]
        assert is_sound.tolist() == [1, 1, 1]  # as the engine asks: is the raw logit of that token a number


def test_a_row_draws_the_same_bits_alone_in_company_and_again(device, random):
    logits = logits_of(random, 64, 32000)
    together = Bench(device, 32000, 80)
    sampling = replace(mixed(random, 64, 32000, has_masks=False), logprobs=5)
    first = together.draw(logits, sampling)
    for _ in range(3):
        for one, again in zip(first, together.draw(logits, sampling), strict=True):
            np.testing.assert_array_equal(one, again)
    for row in range(0, 64, 7):
        per_row = {name: getattr(sampling, name)[row : row + 1] for name in ROW_NAMES}
        alone = batch(1, **per_row, **lists_of(sampling, row), logprobs=5)
        for one, other in zip(first, together.draw(logits[row : row + 1], alone), strict=True):
            np.testing.assert_array_equal(one[row : row + 1], other)


ROW_NAMES = (
    *("temperature", "top_k", "top_p", "min_p", "seeds", "steps"),
    *("presence_penalty", "frequency_penalty"),
)


def lists_of(sampling: SamplingBatch, row: int) -> dict[str, np.ndarray]:
    counted, biased = (slice(*starts[row : row + 2]) for starts in (sampling.count_starts, sampling.bias_starts))
    return {
        "count_starts": np.array([0, counted.stop - counted.start], np.int32),
        "count_ids": sampling.count_ids[counted],
        "counts": sampling.counts[counted],
        "bias_starts": np.array([0, biased.stop - biased.start], np.int32),
        "bias_ids": sampling.bias_ids[biased],
        "biases": sampling.biases[biased],
    }


def test_padding_rows_and_the_logits_are_left_as_they_are(device, random):
    host = logits_of(random, 8, 1000)
    host[5:] = np.nan
    bench, sampling = Bench(device, 1000, 16), mixed(random, 8, 1000, has_masks=True)
    bench.fill(sampling, live=5)
    logits = to_device(host)
    found = bench.launch(logits, logprobs=3)
    np.testing.assert_array_equal(cp.asnumpy(logits), host)
    assert (cp.asnumpy(found.tokens)[:5] >= 0).all()
    assert (cp.asnumpy(bench.sampler.drawn)[5:] == -1).all()
    assert (cp.asnumpy(found.is_sound)[5:] == 0xFF).all()
    assert (cp.asnumpy(found.top_ids)[5:] == -1).all()
    assert np.isnan(cp.asnumpy(found.logprobs)[5:]).all()
    np.testing.assert_array_equal(cp.asnumpy(found.tokens), cp.asnumpy(bench.sampler.drawn)[:8])


@pytest.mark.parametrize(("vocab", "listed"), [(8, 20), (1000, 0), (32000, 1), (128256, 20), (20000, 7)])
def test_log_probabilities_are_the_twins(device, random, vocab, listed):
    logits = logits_of(random, 6, vocab)
    logits[1] = 2.5  # more equals than a block sorts
    logits[2, 7] = np.nan
    logits[3, : vocab - 3] = -np.inf  # a list of more than are possible
    sampling = replace(mixed(random, 6, vocab, has_masks=True), logprobs=listed)
    tokens, _, logprobs, top_ids, top_logprobs = Bench(device, vocab, 6).draw(logits, sampling)
    expect = sample(logits, sampling)
    sound = [0, 1, 3, 4, 5]
    assert np.isnan(logprobs[2]) and np.isnan(top_logprobs[2]).all()
    np.testing.assert_array_equal(top_ids[sound], expect.top_ids[sound])
    # Both sides are rounded to float32 once; the twin also sums in it: 1e-6 of the largest, 200.
    np.testing.assert_allclose(top_logprobs[sound], expect.top_logprobs[sound], rtol=2e-6, atol=1e-5)
    same = [row for row in sound if tokens[row] == expect.tokens[row]]
    assert len(same) >= 4
    np.testing.assert_allclose(logprobs[same], expect.logprobs[same], rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "kept"), [({}, 8), ({"temperature": 2.0}, 8), ({"top_p": 0.8}, 5), ({"top_k": 3}, 3)], ids=str
)
def test_tokens_come_as_often_as_their_probability_says(device, rule, kept):
    values = np.array([0.0, 1.0, -0.5, 0.3, 0.8, -1.0, 0.1, 0.5], np.float32)
    bench, rows, launches = Bench(device, 8, 250), 250, 80
    logits, seen = np.tile(values, (rows, 1)), np.zeros(8)
    for number in range(launches):
        steps = np.arange(rows) + rows * number
        seen += np.bincount(bench.draw(logits, batch(rows, seeds=3, steps=steps, **rule))[0], minlength=8)
    weights = np.exp(values.astype(np.float64) / rule.get("temperature", 1.0))
    weights[np.argsort(-values)[kept:]] = 0
    expect = rows * launches * weights / weights.sum()
    assert seen[expect == 0].sum() == 0
    chi_square = ((seen - expect) ** 2 / np.maximum(expect, 1e-9))[expect > 0].sum()
    assert chi_square < 29.9  # 7 degrees of freedom exceed it once in 10,000


def test_a_recorded_step_follows_its_parameters(device, random):
    bench = Bench(device, 128256, 4)
    logits = to_device(random.standard_normal((4, 128256), np.float32) * 3)
    host = cp.asnumpy(logits)
    bench.fill(batch(4))
    bench.launch(logits, 2)  # loads the kernels
    device.synchronize()
    device.stream.begin_capture()
    found = bench.launch(logits, 2)
    graph = device.stream.end_capture()
    for rule in ({"top_p": 0.9}, {"temperature": 0.0}, {"top_k": 30, "steps": np.arange(4) + 9}):
        bench.fill(batch(4, **rule))
        graph.launch(device.stream)
        device.synchronize()
        np.testing.assert_array_equal(cp.asnumpy(found.tokens), sample(host, batch(4, **rule)).tokens)


def test_steps_that_are_known_to_be_greedy_need_one_kernel(device, random):
    logits = random.standard_normal((5, 32000), np.float32)
    tokens, *_ = Bench(device, 32000, 8).draw(logits, batch(5, temperature=0.0), greedy=True)
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
    with pytest.raises(ShapeError, match="room for 3"):
        bench.fill(batch(1, biases=np.ones(4, np.float32), **four))
    with pytest.raises(ShapeError):
        bench.fill(batch(5))
    with pytest.raises(ShapeError):
        Sampler(device, 262145, 1)
