"""Hopper's GEMMs with quantized weights on the emulated GPU, against NumPy.

Its tensor cores add in float32: what 14 bits lose with E4M3 is not seen here.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_gpu import EmulatedGpu, imported, to_gpu
from emulated_kernel import needs_compiler, tensor_map
from quantized_matrix import PLACES, quantized_matrix, quantized_tokens

from wisp_plan.memory.buffers import gemm as buffers
from wisp_plan.quantization.packed_format import PACKED_FORMATS, PackedFormat
from wisp_runtime.ops.cuda.gemm.quantized_tiling import plan_quantized, unsplit_quantized
from wisp_runtime.ops.reference.packing import permuted_rows
from wisp_runtime.ops.reference.quantized_packing import QuantizedMatrix, dequantize, pack_quantized

pytestmark = needs_compiler
BF16 = np.dtype(ml_dtypes.bfloat16)
FORMATS = ("fp8", "fp8_block", "int4_g64_zero", "nvfp4")  # a source each
OUTPUTS, INPUTS = 336, 1552  # the last tiles of rows and of columns are parts
TOKENS = (5, 16, 30, 60, 100, 200)  # a width of tiles each


@cache
def wrappers() -> list[ModuleType]:
    """Import the wrappers, which share their classes."""
    with imported("gemm.quantized_launch", "weights.quantized", "gemm.token_codes") as found:
        return found


class Case:
    """A packed matrix, tokens, and their GEMM in float64; ``size`` is that of the terms.

    Args:
        has_codes: whether tokens are E4M3 too.
    """

    def __init__(self, packed: PackedFormat, tokens: int, op: str, *, has_codes: bool = False) -> None:
        random = np.random.default_rng(tokens)
        self.packed, self.op = packed, op
        permutation = "gate_up_interleaved" if op == "linear_swiglu" else "plain"
        matrix = quantized_matrix(packed, OUTPUTS, INPUTS)
        self.memory = to_gpu(pack_quantized(packed, matrix, permutation))
        of_storage = OUTPUTS, INPUTS, permutation, packed
        self.weight = wrappers()[1].QuantizedStorage(self.memory, *of_storage)
        self.x, self.codes = random.standard_normal((tokens, INPUTS)).astype(BF16), None
        x, weights = self.x.astype(np.float64), _as_multiplied(packed, matrix, is_rounded=not has_codes)
        if has_codes:
            x, self.codes = self._codes()
        y = x @ weights.T
        self.size = np.sqrt(x**2 @ weights.T**2)
        bias = (random.standard_normal(OUTPUTS) * self.size.min(0)).astype(BF16)
        self.bias = np.zeros(OUTPUTS, BF16)
        self.bias[permuted_rows(OUTPUTS, permutation)] = bias
        self.expected = y if op == "linear_logits" else y + bias.astype(np.float64)

    def _codes(self):
        """Return tokens rounded to E4M3, and codes and scales as quantize_tokens.cu stores them."""
        in_groups, tokens = self.packed.has_block_scales, len(self.x)
        numbers, spread, scales = quantized_tokens(self.x.astype(np.float32), in_groups=in_groups)
        stride = buffers.padded_tokens(tokens)
        held = np.zeros((scales.shape[1], stride), np.float32)
        held[:, :tokens] = scales.T
        codes = numbers.view(np.uint8).reshape(tokens, -1, 16)[:, :, PLACES].reshape(tokens, INPUTS)
        made = to_gpu(np.ascontiguousarray(codes).view(BF16)), to_gpu(held)
        exact = numbers.astype(np.float64) * spread
        return exact, wrappers()[2].Codes(*made, stride if in_groups else 0)

    def launch(self, planner, *, seed: int, resident: int = 0) -> np.ndarray:
        gpu, tokens = EmulatedGpu(seed, resident=resident, hardware="hopper"), to_gpu(self.x)
        columns = OUTPUTS // 2 if self.op == "linear_swiglu" else OUTPUTS
        out = to_gpu(
            np.full((len(self.x), columns), np.nan, np.float32 if self.op == "linear_logits" else BF16)
        )
        partials, arrivals = map(gpu.view, buffers.split_k(len(self.x), gpu.sm_count))
        arrays = tokens, self.weight, out, partials, arrivals
        maps = lambda array, width: tensor_map(array.host, width, 64)  # noqa: E731
        made = wrappers()[0].quantized_launch(gpu, planner, self.op, *arrays, maps, self.codes)
        bias = to_gpu(self.bias)
        made.arguments.weight = self.memory.data.ptr
        made.arguments.bias = 0 if self.op == "linear_logits" else bias.data.ptr
        made.quantized.point_to(self.memory.data.ptr)
        given = made.tokens, made.arguments, made.quantized
        sizes = {"shared_bytes": made.shared_bytes, "cluster": made.cluster}
        made.kernel.launch(made.grid, made.threads, *given, **sizes)
        assert not arrivals.host.any(), "counters are not as the next GEMM needs them"
        return out.host

    def check(self, out: np.ndarray) -> None:
        """Compare a result that was rounded to bf16, if it was."""
        error = np.abs(out.astype(np.float64) - self.expected)
        rounding = 0 if self.op == "linear_logits" else 2**-8
        assert (error <= rounding * np.abs(self.expected) + 4e-6 * self.size).all(), error.max()


def _as_multiplied(packed: PackedFormat, matrix: QuantizedMatrix, *, is_rounded: bool) -> np.ndarray:
    """Return weights as tensor cores get them, in bf16 times the scales of rows."""
    rows = matrix.row_scales.astype(np.float64)[:, None]
    matrix = replace(matrix, row_scales=np.ones_like(matrix.row_scales))
    if packed.has_block_scales and is_rounded:
        scales = np.repeat(matrix.block_scales, packed.tile_columns, axis=1)[:, :INPUTS]
        codes = dequantize(packed, replace(matrix, block_scales=np.ones_like(matrix.block_scales)))
        numbers = _times_split(codes, scales)
    else:
        numbers = dequantize(packed, matrix)
    return (numbers.astype(BF16) if is_rounded else numbers).astype(np.float64) * rows


def _times_split(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Multiply by scales that are the sum of two bf16, as ``SplitScale`` of bf16_codecs.cuh does."""
    high = scales.astype(BF16).astype(np.float32)
    low = (scales - high).astype(BF16).astype(np.float32)
    return codes * high + (codes * low).astype(BF16).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_sums_are_those_of_the_dequantized_weights(name: str, tokens: int) -> None:
    case = Case(PACKED_FORMATS[name], tokens, "linear_logits")
    case.check(case.launch(plan_quantized, seed=tokens))
    case.check(case.launch(unsplit_quantized, seed=tokens))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", [5, 30])
def test_a_bias_is_added_and_gates_multiply(name: str, tokens: int) -> None:
    plain = Case(PACKED_FORMATS[name], tokens, "linear")
    plain.check(plain.launch(plan_quantized, seed=1))
    gated = Case(PACKED_FORMATS[name], tokens, "linear_swiglu")
    gate, up = np.split(gated.expected, 2, axis=1)
    gate_size, up_size = np.split(gated.size, 2, axis=1)
    gated.expected = gate / (1 + np.exp(np.minimum(-gate, 700))) * up
    gated.size = 2 * (np.abs(gate) * up_size + np.abs(up) * gate_size)
    gated.check(gated.launch(plan_quantized, seed=2))


@pytest.mark.parametrize("name", ["fp8", "fp8_block"])
@pytest.mark.parametrize("tokens", [65, 129, 200])
def test_tokens_may_be_e4m3_too(name: str, tokens: int) -> None:
    case = Case(PACKED_FORMATS[name], tokens, "linear", has_codes=True)
    case.check(case.launch(None, seed=tokens))


@pytest.mark.parametrize(
    ("name", "tokens", "has_codes"), [("fp8", 65, True), ("fp8", 30, False), ("nvfp4", 5, False)]
)
def test_the_order_of_events_changes_no_bit(name: str, tokens: int, has_codes: bool) -> None:
    case = Case(PACKED_FORMATS[name], tokens, "linear", has_codes=has_codes)
    first = case.launch(plan_quantized, seed=0)
    for seed in range(1, 9):
        again = case.launch(plan_quantized, seed=seed, resident=seed % 4)
        assert np.array_equal(again.view(np.uint16), first.view(np.uint16))
