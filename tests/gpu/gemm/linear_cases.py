"""Random GEMMs with float32 references, for the tests of GEMM kernels: cuBLAS without TF32."""

import os

import cupy as cp
import numpy as np

from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, zeros
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix, elements, pack_rows
from wisp_runtime.ops.reference.packing import permuted_rows

HALF_ULP = 2**-8  # of bf16, relative
SUMS = 1e-4  # absolute: float32 sums of terms of size 1 / sqrt(in), added in another order
SIGMOID = 1e-3  # absolute: those sums again, and a fast exponential
TOKENS = (1, 2, 7, 8, 9, 17, 64, 65, 100, 128, 129, 250, 256, 257, 300, 512, 1000, 2048 + 3)
FEW = (1, 8, 33, 100, 256, 300, 700)
CHAIN = (4096, 1024)  # out and in of a GEMM whose result the next one reads
MAX_ROWS, MAX_INPUTS, AGAIN = 1 << 20, 1 << 20, 5
if "WISP_SANITIZER" in os.environ:  # makes kernels a hundred times slower
    TOKENS, FEW, CHAIN = (1, 9, 65, 129, 257), (1, 33, 257), (264, 136)
    MAX_ROWS, MAX_INPUTS, AGAIN = 1408, 264, 1


def few(*values):
    """Return ``values``; under a sanitizer the first of them alone."""
    return values[:1] if "WISP_SANITIZER" in os.environ else values


NAN = np.uint16(0xFFFF)  # what memory is filled with that must not be written

numbers = cp.ElementwiseKernel(
    "uint32 seed, float32 scale",
    "uint16 y",
    """
    unsigned long long z = (unsigned long long)i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    float sum = 0;
    for (int j = 0; j < 4; j++) sum += (float)((z >> (16 * j)) & 0xffff) / 65536.0f - 0.5f;
    y = __float_as_uint(sum * 1.7320508f * scale) >> 16;
    """,
    "random_bf16_bits",
)


def random_bits(shape, seed, scale=1.0):
    """Numbers of about a normal distribution, as the bits of bf16."""
    return numbers(np.uint32(seed), np.float32(scale), cp.empty(shape, np.uint16))


widened = cp.ElementwiseKernel(
    "uint16 bits", "float32 y", "y = __uint_as_float((unsigned)bits << 16)", "widened"
)
is_wrong = cp.ElementwiseKernel(  # one kernel for many of CuPy's: each would be compiled first
    "float32 actual, float32 expected, float32 relative, float32 absolute",
    "bool wrong",
    "wrong = !(fabsf(actual - expected) <= relative * fabsf(expected) + absolute)",
    "is_wrong",
)


class Case:
    """A packed matrix and its float32 reference; ``tokens`` rows of X in a larger buffer full of NaN.

    Sizes are capped at ``MAX_ROWS`` by ``MAX_INPUTS``; ``outputs`` and ``inputs`` are the actual ones.
    """

    def __init__(self, device, outputs, inputs, permutation="plain", has_bias=False):
        outputs, inputs = min(outputs, MAX_ROWS), min(inputs, MAX_INPUTS)
        bits = random_bits((outputs, inputs), outputs + inputs, inputs**-0.5)
        self.outputs, self.inputs, self.device, self.dense = outputs, inputs, device, widened(bits)
        self.weight = PackedMatrix(zeros((elements(outputs, inputs),), BF16), outputs, inputs, permutation)
        pack_rows(device, bits.view(BF16), self.weight, 0)
        self.add_bias(permutation if has_bias else None)
        device.synchronize()  # weights are loaded before the kernel ahead has ended

    def add_bias(self, permutation):
        """Add a bias in the order of the packed rows; with None for a permutation there is none."""
        self.bias = self.added = None
        if permutation is not None:
            bias = random_bits((self.outputs,), 5)
            places = cp.asarray(permuted_rows(self.outputs, permutation))
            packed = cp.empty_like(bias)
            packed[places] = bias
            self.bias, self.added = packed.view(BF16), widened(bias)

    def x(self, tokens, gap=0):
        """``[tokens, in]`` bf16, rows ``in + gap`` apart, and the same as float32."""
        bits = random_bits((tokens, self.inputs), tokens)
        buffer = full_nan((tokens + 200, self.inputs + gap), np.uint16)
        buffer[:tokens, : self.inputs] = bits
        return buffer.view(BF16)[:tokens, : self.inputs], widened(bits)

    def matmul(self, x):
        y = cp.matmul(x, self.dense.T)
        return y if self.added is None else y + self.added

    def gated(self, x):
        y = self.matmul(x)
        gate, up = y[:, : self.outputs // 2], y[:, self.outputs // 2 :]
        return gate / (1 + cp.exp(-gate)) * up


def spare_rows(device, name, tokens, columns, dtype):
    """Fill the result's buffer and three rows more with NaN; return those three, as bytes."""
    array = device.workspace.array(name, (tokens + 3, columns), dtype)
    array.data.memset_async(0xFF, array.nbytes)
    return array.view(np.uint8)[tokens:]


def wrongs(y, expected, absolute):
    actual, relative = (widened(y.view(np.uint16)), HALF_ULP) if y.dtype == BF16 else (y, 0)
    return is_wrong(actual, expected, np.float32(relative), np.float32(absolute))


def check(y, expected, absolute):
    wrong = wrongs(y, expected, absolute)
    if bool(wrong.any()):
        rows, columns = np.nonzero(cp.asnumpy(wrong))
        where = int(rows[0]), int(columns[0])
        got = cp.asnumpy(y[where].reshape(1))
        raise AssertionError(
            f"{len(rows)} of {wrong.size} wrong, rows {rows.min()}..{rows.max()}, columns {columns.min()}.."
            f"{columns.max()}; first {where}: {got[0]}, must be {float(expected[where])}"
        )


def as_bits(array):
    return array.view(np.uint16 if array.dtype == BF16 else np.uint32)


def check_stable(multiply, y):
    """``AGAIN`` more, one after the other without waiting, give the same bits."""
    first = as_bits(y).copy()
    for again in range(AGAIN):
        y.data.memset_async(0xFF, y.nbytes)
        _require_same_bits(multiply(), first, f"repetition {again + 1}, over 0xFF")
    for _ in range(AGAIN):
        y = multiply()
    _require_same_bits(y, first, f"{AGAIN} repetitions without a pause")


def _require_same_bits(y, first, when):
    bits = as_bits(y)
    if bool((bits == first).all()):
        return
    got, want = cp.asnumpy(bits), cp.asnumpy(first)
    rows, columns = np.nonzero(got != want)
    some = [
        f"[{row}, {column}] {got[row, column]:#x}, was {want[row, column]:#x}"
        for row, column in list(zip(rows, columns, strict=True))[:4]
    ]
    raise AssertionError(
        f"{when}: {len(rows)} of {got.size} {got.shape} differ, rows {rows.min()}..{rows.max()}, columns "
        f"{columns.min()}..{columns.max()}: {'; '.join(some)}"
    )
