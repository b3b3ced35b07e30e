"""A quantized KV cache in the persistent kernel on an emulated GPU, against the general path.

Scales of K and V differ by layer. The general path computes K and V of a new token in float32, the kernel
from bf16: a code here and there is another, so the general path goes on with the kernel's.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import HERE, needs_compiler
from emulated_step import SOURCE, EmulatedStep, small
from spec_changes import changed
from test_emulated_step import CONTEXTS, MODELS, cosines

pytestmark = needs_compiler
BY_WIDTH = {8: ("padding", "in parts"), 16: ("16",), 64: ("64",)}
MAX_ERROR = 1e-4
NAN = 0x7F


@lru_cache(maxsize=2)
def step_of(name: str, width: int, window: int | None = None) -> EmulatedStep:
    shape, sizes, blocks = MODELS[name]
    options = (f"-DWIDTH={width}", "-DWISP_KV_FORMAT=fp8", f"-I{SOURCE.parent}")
    spec = changed(small(shape, **sizes), window=window)
    return EmulatedStep(spec, blocks, options, HERE / "quantized_decode.cu", kv="fp8")


def numbers(codes: np.ndarray) -> np.ndarray:
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def check(step: EmulatedStep, contexts: list[int], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare new tokens with the general path's, then logits; all other tokens stay as they were."""
    batch, live = step.batch(contexts), np.array(contexts) > 0
    blocks, offsets = np.divmod(batch.slots[live], 16)
    step.keys[:], step.values[:] = step.cache.keys, step.cache.values
    for block, offset in zip(blocks, offsets, strict=True):  # tokens that do not exist yet
        step.keys[:, block, :, offset:] = step.values[:, block, :, offset:] = NAN
    before, got = (step.keys.copy(), step.values.copy()), step.launch(batch, seed)[live]
    write_kv, layers = step.ops.write_kv, iter(zip(step.keys, step.values, strict=True))

    def write_and_compare(k, v, slots, keys, values, encoding):
        write_kv(k, v, slots, keys, values, encoding)
        for theirs, ours in zip((keys, values), next(layers), strict=True):
            expected, new = theirs[blocks, :, offsets], ours[blocks, :, offsets]
            assert cosines(numbers(expected), numbers(new)).min() > 0.999
            assert (new == expected).mean() > 0.8
            theirs[blocks, :, offsets] = new

    monkeypatch.setattr(step.ops, "write_kv", write_and_compare)
    assert cosines(step.general(batch), got).min() > 1 - MAX_ERROR
    for old, new in zip(before, (step.keys, step.values), strict=True):
        old[:, blocks, :, offsets] = new[:, blocks, :, offsets]
        assert np.array_equal(old, new)


@pytest.mark.parametrize("width", BY_WIDTH)
@pytest.mark.parametrize("name", ["heads of 64", "groups of four"])
def test_a_step_equals_the_general_path(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for contexts in BY_WIDTH[width]:
        with monkeypatch.context() as patch:
            check(step_of(name, width), CONTEXTS[contexts], seed=1, monkeypatch=patch)


def test_a_query_sees_no_further_than_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    check(step_of("heads of 64", 8, 1040), CONTEXTS["in parts"], seed=2, monkeypatch=monkeypatch)


def test_the_order_of_events_changes_no_bit() -> None:
    step = step_of("groups of four", 8)
    batch = step.batch(CONTEXTS["in parts"])
    logits = step.launch(batch, seed=0)
    for seed in range(1, 4):
        assert np.array_equal(step.launch(batch, seed), logits), f"seed {seed}"
