"""The portable GEMMs with quantized weights, on the emulated GPU, against NumPy."""

from __future__ import annotations

import ctypes
import shutil
import sys
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_kernel import Emulated, needs_compiler
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import PACKED_FORMATS, PackedFormat
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.portable_plan import quantized_arguments, quantized_entry
from wisp_runtime.ops.reference.packing import permuted_rows
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized

pytestmark = needs_compiler
BF16 = np.dtype(ml_dtypes.bfloat16)
CATALOGUE = Catalogue()
THREADS = constants()["mma_gemm_threads"]
PERMUTATIONS = {"linear": "plain", "linear_swiglu": "gate_up_interleaved", "linear_logits": "plain"}
SHAPES = {  # rows and columns: a part of a packed tile, more than two
    "linear": (136, 264),
    "linear_swiglu": (80, 136),
    "linear_logits": (72, 584),
}
SOURCES = {name: CATALOGUE.choose("linear", "ampere", name).path for name in PACKED_FORMATS}
EVERY = pytest.mark.parametrize("name", PACKED_FORMATS)


@cache
def kernels_of(path: Path) -> Emulated:
    return Emulated(path, [*CATALOGUE.defines("ampere")])


class Case:
    """A packed matrix with its bias, tokens, and their GEMM in float64."""

    def __init__(self, packed: PackedFormat, tokens: int, op: str) -> None:
        random = np.random.default_rng(tokens)
        self.packed, self.op = packed, op
        self.outputs, self.inputs = outputs, inputs = SHAPES[op]
        matrix, permutation = quantized_matrix(packed, outputs, inputs), PERMUTATIONS[op]
        self.storage = _aligned(pack_quantized(packed, matrix, permutation))
        self.x = random.standard_normal((tokens, inputs + 8)).astype(BF16)
        self.x[:, inputs:] = np.nan  # not read
        x, weights = self.x[:, :inputs].astype(np.float64), dequantize(packed, matrix).astype(np.float64)
        y = x @ weights.T
        self.size = np.sqrt(x**2 @ weights.T**2)  # of the terms
        bias = (random.standard_normal(outputs) * self.size.min(0)).astype(BF16)
        self.bias = np.zeros(outputs, BF16)
        self.bias[permuted_rows(outputs, permutation)] = bias
        self.expected = y + bias.astype(np.float64)

    def launch(self, block_n: int, splits: int, seed: int, source: Path | None = None) -> np.ndarray:
        tokens = len(self.x)
        columns = self.outputs // 2 if self.op == "linear_swiglu" else self.outputs
        out = np.full((tokens, columns), np.nan, np.float32 if self.op == "linear_logits" else BF16)
        grid = -(-tokens // block_n), -(-self.outputs // 128), splits
        tiles = grid[0] * grid[1]
        partials = np.full(tiles * splits * 128 * block_n + 4, np.nan, np.float32)
        arrivals = np.zeros(tiles, np.uint32)
        arguments = quantized_arguments(
            self.packed,
            self.op,
            weight=self.storage.ctypes.data,
            bias=self.bias.ctypes.data,
            out=out.ctypes.data,
            partials=-(-partials.ctypes.data // 16) * 16,
            arrivals=arrivals.ctypes.data,
            x_stride=self.x.strides[0] // BF16.itemsize,
            rows=self.outputs,
            inputs=self.inputs,
            tokens=tokens,
        )
        kernels_of(source or SOURCES[self.packed.name]).launch(
            quantized_entry(self.packed, block_n),
            [ctypes.c_void_p(self.x.ctypes.data), arguments],
            blocks=grid,
            threads=THREADS,
            seed=seed,
        )
        assert not arrivals.any(), "counters are not as the next GEMM needs them"
        return out


def _aligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.size + 16, np.uint8)
    memory = memory[-memory.ctypes.data % 16 :][: array.size]
    memory[:] = array
    return memory


@EVERY
@pytest.mark.parametrize(
    ("block_n", "tokens", "splits"),
    [(8, 5, 1), (8, 8, 2), (16, 16, 2), (32, 30, 2), (64, 65, 1), (128, 100, 3), (256, 130, 2)],
)
def test_sums_are_those_of_the_dequantized_weights(name: str, block_n: int, tokens: int, splits: int) -> None:
    case = Case(PACKED_FORMATS[name], tokens, "linear_logits")
    error = np.abs(case.launch(block_n, splits, seed=tokens) - case.expected) / case.size
    assert error.max() < 4e-6  # of float32 sums; weights are exact


@EVERY
def test_results_are_rounded_once_and_gated(name: str) -> None:
    plain, gated = (Case(PACKED_FORMATS[name], 6, op) for op in ("linear", "linear_swiglu"))
    error = np.abs(plain.launch(8, 1, seed=1).astype(np.float64) - plain.expected)
    assert (error <= np.abs(plain.expected) * 2**-8 + plain.size * 1e-6).all()
    gate, up = np.split(gated.expected, 2, axis=1)
    expected = gate * (1 + np.tanh(gate / 2)) / 2 * up
    error = np.abs(gated.launch(8, 1, seed=2).astype(np.float64) - expected)
    assert (error <= np.abs(expected) * 2**-8 + 1e-4 * np.abs(up) + 1e-5).all()


def test_the_order_of_events_changes_no_bit() -> None:
    case = Case(PACKED_FORMATS["int4_g32_zero"], 8, "linear_logits")
    first = case.launch(8, 2, seed=0)
    assert all(np.array_equal(case.launch(8, 2, seed), first) for seed in range(1, 5))


@pytest.mark.parametrize("wait", ["copies_wait<kAhead - 1>();", "__syncthreads();"])
def test_the_emulator_finds_a_wait_that_was_forgotten(wait: str, tmp_path: Path) -> None:
    whole = SOURCES["int8"]
    shutil.copytree(whole.parents[1], tmp_path, dirs_exist_ok=True)
    source = tmp_path / whole.parent.name / whole.name
    header = source.with_name("quantized_mma.cuh")
    text = header.read_text()
    assert text.count(f"    {wait}\n") == 1
    header.write_text(text.replace(f"    {wait}\n", ""))
    case = Case(PACKED_FORMATS["int8"], 8, "linear_logits")
    expected = case.launch(8, 1, seed=0)
    assert not all(np.array_equal(case.launch(8, 1, seed, source), expected) for seed in range(6))
