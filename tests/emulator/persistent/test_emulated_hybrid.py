"""Hybrids of Gated DeltaNet and gated attention in the persistent kernel on an emulated GPU."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_kernel import HERE, needs_compiler
from emulated_step import SOURCE, EmulatedStep, small_hybrid
from quantized_matrices import quantize
from test_emulated_step import CONTEXTS, cosines, equals_general

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized

pytestmark = needs_compiler
SIZES = {"hidden": 256, "inner": 640, "heads": 2, "kv_heads": 1, "key_heads": 2, "value_heads": 4}
BLOCKS = 26  # two 64-row blocks a cluster hold the 1,536 rows of the widest projection and a gates' tile
BY_WIDTH = {8: "padding", 16: "16", 32: "32"}
NOT_ROUNDED = ("gates", "embeddings", "head")


class Hybrid(EmulatedStep):
    """Two kinds of layers in turn, in a variant of the kernel alone; layers may be quantized."""

    def __init__(self, width: int, weight_format: str = "bf16", layers: int = 5, kv: str = "bf16") -> None:
        self._packed = PACKED_FORMATS.get(weight_format)
        formats = (f"-DWISP_WEIGHT_FORMAT={weight_format}", f"-DWISP_KV_FORMAT={kv}", f"-DWIDTH={width}")
        options = (*formats, f"-I{SOURCE.parent}")
        spec = small_hybrid(layers, **SIZES, vocab=300)
        super().__init__(spec, BLOCKS, options, HERE / "quantized_decode.cu", kv=kv)

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        if self._packed is None or any(part in name for part in NOT_ROUNDED):
            return super().packed(name, matrix, permutation)
        quantized = quantize(self._packed, matrix.astype(np.float32))
        self.replace(name, dequantize(self._packed, quantized))
        return pack_quantized(self._packed, quantized, permutation)

    def equals_general(self, contexts: list[int], seed: int, max_error: float) -> bool:
        """Compare a step's logits, caches and states; to the bit those of slots without a sequence."""
        for state, theirs in zip(self.states, self.cache.states, strict=True):
            state[:] = theirs
        before = [state.copy() for state in self.states]
        equals = equals_general(self, contexts, seed, max_error)
        return equals and states_equal(self, self.batch(contexts).state_slots, before, max_error)


def states_equal(step: EmulatedStep, slots: np.ndarray, before: list[np.ndarray], max_error: float) -> bool:
    """Say so of those of `slots` after a step both ways; all others are as `before`."""
    used = slots[slots >= 0]
    kept = np.setdiff1d(np.arange(len(before[0])), used)
    for state, old, theirs in zip(step.states, before, step.cache.states, strict=True):
        if not np.array_equal(state[kept], old[kept]):
            return False
        expected, got = (array[used].reshape(len(used), -1) for array in (theirs, state))
        if cosines(expected, got).min() <= 1 - max_error:
            return False
    return True


@lru_cache(maxsize=2)
def step_of(width: int, weight_format: str = "bf16", kv: str = "bf16") -> Hybrid:
    return Hybrid(width, weight_format, kv=kv)


@pytest.mark.parametrize("contexts", ["one", "padding", "in parts", "16", "32"])
def test_a_step_equals_the_general_path(contexts: str) -> None:
    width = next(width for width in BY_WIDTH if width >= len(CONTEXTS[contexts]))
    assert step_of(width).equals_general(CONTEXTS[contexts], seed=1, max_error=5e-4)


# Gates stay bf16; up to 16 sequences their GEMM is the only one by wgmma.
@pytest.mark.parametrize(("weight_format", "width"), [("fp8_block", 8), ("fp8_block", 32), ("int4", 16)])
def test_quantized_weights_equal_the_general_path(weight_format: str, width: int) -> None:
    contexts = CONTEXTS[BY_WIDTH[width]]
    assert step_of(width, weight_format).equals_general(contexts, seed=2, max_error=2e-4)


def test_a_cache_of_fp8_equals_the_general_path() -> None:
    step, contexts = step_of(8, kv="fp8"), CONTEXTS["padding"]
    batch, live = step.batch(contexts), np.array(contexts) > 0
    expected, got = step.general(batch), step.launch(batch, seed=3)[live]
    assert cosines(expected, got).min() > 1 - 5e-4


def test_the_first_layers_alone_equal_those_of_the_general_path() -> None:
    step, contexts = step_of(8), CONTEXTS["padding"]
    batch, live = step.batch(contexts), np.array(contexts) > 0
    step.keys[:], step.values[:] = step.cache.keys, step.cache.values
    for state, theirs in zip(step.states, step.cache.states, strict=True):
        state[:] = theirs
    expected, got = step.general(batch, layers=2), step.launch(batch, seed=4, layers=2)[live]
    assert cosines(expected, got).min() > 1 - 5e-4


@pytest.mark.parametrize("width", [8, 32])
def test_the_order_of_events_changes_no_bit(width: int) -> None:
    step, contexts = step_of(width), CONTEXTS[BY_WIDTH[width]]
    batch, live = step.batch(contexts), np.array(contexts) > 0
    before = [state.copy() for state in step.states]
    results = []
    for seed in range(4):
        for state, old in zip(step.states, before, strict=True):
            state[:] = old
        logits = step.launch(batch, seed)[live]
        results.append([logits, *(state.view(np.uint8).copy() for state in step.states)])
    for again in results[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(results[0], again, strict=True))


def test_a_sequence_that_begins_has_a_state_of_zeros() -> None:
    step = Hybrid(8, layers=4)
    for state in (*step.cache.states, *step.states):
        state[:] = np.nan  # of slots that nothing was written to
    batch = step.batch([1, 0, 1])
    expected, got = step.general(batch), step.launch(batch, seed=1)[[0, 2]]
    assert cosines(expected, got).min() > 1 - 5e-4
