"""Quantized weights in the persistent kernel on an emulated GPU, against float32 of what they stand for.

The general path rounds nothing but K and V; the kernel rounds activations to f16 (10 bits), so cosines
are close to 1 and rows that are wrong are not.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import HERE, needs_compiler
from emulated_step import SOURCE, EmulatedStep, small
from quantized_matrices import quantize
from test_emulated_step import CONTEXTS, HEADS_OF_64, HEADS_OF_128, equals_general

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized

pytestmark = needs_compiler
# A shape, its sizes, thread blocks. K of 384 and 640 is no multiple of 256; halves of its blocks differ.
SIZES = {
    "smollm2-135m": (HEADS_OF_64 | {"hidden": 384, "inner": 640, "heads": 4}, 14),
    "llama-3-8b": (HEADS_OF_128 | {"hidden": 256, "inner": 640, "heads": 4}, 14),
}
BY_WIDTH = {8: "padding", 16: "16", 32: "32", 64: "64"}
MAX_ERROR = 5e-5


class Quantized(EmulatedStep):
    """A model whose layers are quantized; the general path has the weights that they stand for."""

    def __init__(self, weight_format: str, width: int, head_format: str, shape: str) -> None:
        self._formats = {"layers": PACKED_FORMATS[weight_format], "head": PACKED_FORMATS.get(head_format)}
        sizes, blocks = SIZES[shape]
        sizes = sizes | {"layers": 2 if width <= 16 else 1}  # wide steps take a second of CPU a layer
        formats = (f"-DWISP_WEIGHT_FORMAT={weight_format}", f"-DWISP_HEAD_FORMAT={head_format}")
        options = (*formats, f"-DWIDTH={width}", f"-I{SOURCE.parent}")
        super().__init__(small(shape, **sizes), blocks, options, HERE / "quantized_decode.cu")

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        packed = self._formats.get(name.split(".")[0])
        if packed is None:
            return super().packed(name, matrix, permutation)
        quantized = quantize(packed, matrix.astype(np.float32))
        self.replace(name, dequantize(packed, quantized))
        return pack_quantized(packed, quantized, permutation)


@lru_cache(maxsize=1)
def step_of(
    weight_format: str, width: int, head_format: str = "bf16", shape: str = "smollm2-135m"
) -> Quantized:
    return Quantized(weight_format, width, head_format, shape)


# Up to 16 sequences take mma.sync, from 32 on wgmma; scales are multiplied into sums or into weights.
@pytest.mark.parametrize(
    ("weight_format", "width"),
    [
        ("fp8", 8),
        ("fp8", 32),
        ("fp8_block", 8),
        ("fp8_block", 16),
        ("fp8_block", 32),
        ("int8", 16),
        ("int8", 32),
        ("int4", 8),
        ("int4", 16),
        ("int4", 32),
        ("int4_zero", 8),
        ("int4_g64", 16),
        ("int4_g64_zero", 8),
        ("int4_g32", 8),
        ("int4_g32_zero", 32),
        ("mxfp4", 8),
        ("mxfp4", 32),
        ("nvfp4", 8),
        ("nvfp4", 32),
    ],
)
def test_a_step_equals_the_general_path(weight_format: str, width: int) -> None:
    step = step_of(weight_format, width)
    assert equals_general(step, CONTEXTS[BY_WIDTH[width]], seed=1, max_error=MAX_ERROR)


@pytest.mark.parametrize(("weight_format", "width"), [("fp8_block", 8), ("int4", 64)])
def test_a_quantized_head_equals_the_general_path(weight_format: str, width: int) -> None:
    # RoPE-interleaved heads, and a head that is no embedding
    step = step_of(weight_format, width, "fp8", "llama-3-8b")
    assert equals_general(step, CONTEXTS[BY_WIDTH[width]], seed=2, max_error=MAX_ERROR)


class Massive(Quantized):
    """A model some of whose residual, or SwiGLU outputs, are above 65,504, f16's largest number."""

    def __init__(self, rows: dict[str, slice], width: int) -> None:
        self._rows = rows
        super().__init__("fp8", width, "fp8", "llama-3-8b")

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        if picked := self._rows.get(name):
            matrix = matrix.copy()
            matrix[picked] *= np.exp2(np.linspace(8, 18, len(matrix[picked])))[:, None].astype(matrix.dtype)
        return super().packed(name, matrix, permutation)


RESIDUAL, GATED = (
    {"layers.0.output.weight": slice(5, 200, 19)},
    {"layers.0.gate_up.weight": slice(-500, None, 37)},
)


@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize("rows", [RESIDUAL, GATED])
def test_activations_beyond_f16_do_not_saturate(rows: dict[str, slice], width: int) -> None:
    step = Massive(rows, width)
    # A few large numbers decide, so errors average out less; saturated, cosines are below 0.99.
    assert equals_general(step, CONTEXTS[BY_WIDTH[width]], seed=1, max_error=2 * MAX_ERROR)


@pytest.mark.parametrize("width", [8, 32])
def test_the_order_of_events_changes_no_bit(width: int) -> None:
    step = step_of("fp8_block", width)
    batch = step.batch(CONTEXTS[BY_WIDTH[width]])
    live, logits = batch.context_lengths > 0, step.launch(batch, seed=0)
    for seed in range(1, 3):
        assert np.array_equal(step.launch(batch, seed)[live], logits[live]), f"seed {seed}"
