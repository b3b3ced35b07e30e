"""A sampler to test, inputs of every kind for it, and the comparison with the reference implementation."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import cupy as cp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/support"))
from sampling_rows import batch

from wisp_runtime.batch import SamplingBatch
from wisp_runtime.ops.cuda.device.arrays import to_device
from wisp_runtime.ops.cuda.sampling.sampler import Sampler
from wisp_runtime.ops.reference import sample, token_words
from wisp_runtime.ops.reference.sampling import _adjust, _keep

EDGE = 1e-6  # float32 weights: how far a sum of probabilities may be from float64's
KEY = 1e-5  # float32 race keys of up to 27: three roundings of 2e-6 each


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

    def sample(self, logits: np.ndarray, sampling: SamplingBatch, live: int | None = None, **options):
        """Return tokens, soundness and whatever was reported, on the host."""
        self.fill(sampling, live)
        actual = self.launch(to_device(logits), sampling.logprobs, **options)
        names = ("tokens", "is_sound", "logprobs", "top_ids", "top_logprobs")
        arrays = (getattr(actual, name) for name in names)
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
    """Require the reference's tokens and verdicts; return the number of rows that differ by rounding."""
    tokens, is_sound, *_ = bench.sample(logits, sampling)
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
    seen = random.integers(0, 2, bits.shape)
    seen[random.random(rows) < 0.3, 3:] = 0
    return batch(
        rows,
        temperature=random.choice([0, 1e-3, 0.3, 0.7, 1, 1, 1, 1.5, 1e3], rows).astype(np.float32),
        top_k=random.choice([0, 0, 0, 1, 5, 40, 1000, 30000, vocab], rows).astype(np.int32),
        top_p=random.choice([1, 1, 1, 0, 1e-5, 0.3, 0.9, 0.95, 0.9999], rows).astype(np.float32),
        min_p=random.choice([0, 0, 0, 0.05, 0.5, 1], rows).astype(np.float32),
        seeds=random.integers(0, 1 << 64, rows, np.uint64),
        steps=random.integers(0, 1 << 40, rows),
        repetition_penalty=random.choice([1, 1, 1.05, 1.3, 0.8, 100], rows).astype(np.float32),
        seen=np.packbits(seen, axis=1, bitorder="little").view(np.uint32),
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
