"""Random quantized matrices whose codes, scales and zero points take every value that kernels must read.

And tokens in E4M3, which meet those of E4M3.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from wisp_plan.quantization.packed_format import BLOCK_SCALE_ROWS, PackedFormat
from wisp_runtime.ops.reference.quantized_packing import QuantizedMatrix

_NAN = 0x7F  # E4M3's, without its sign
_MAX_E4M3, _MIN_SCALE = np.float32(448), np.float32(2.0**-100)
PLACES = np.array([column for p in range(4) for column in (2 * p, 2 * p + 1, 8 + 2 * p, 9 + 2 * p)])
"""Columns of sixteen in the order in which quantize_tokens.cu stores their codes."""


def quantized_tokens(x: np.ndarray, *, in_groups: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the E4M3 numbers of float32 tokens; their scales, for each column; the same ``[N, groups]``.

    Args:
        in_groups: whether 128 columns of a token have a scale; else all.
    """
    tokens, columns = x.shape
    width = 128 if in_groups else columns
    padded = np.zeros((tokens, -(-columns // width) * width), np.float32)
    padded[:, :columns] = x
    groups = np.abs(padded).reshape(tokens, -1, width).max(2)
    scales = np.maximum(groups / _MAX_E4M3, _MIN_SCALE)
    spread = np.repeat(scales, width, axis=1)[:, :columns]
    return (x / spread).astype(ml_dtypes.float8_e4m3fn), spread, scales


def quantized_matrix(packed: PackedFormat, outputs: int, inputs: int, seed: int = 0) -> QuantizedMatrix:
    """Make a matrix, some of whose groups have a scale of 0; no E4M3 is NaN."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << packed.bits, (outputs, inputs), dtype=np.uint8)
    if packed.numbers == "e4m3":
        codes[codes & _NAN == _NAN] = 0
    rows = random.uniform(0.5, 2, outputs).astype(np.float32) * np.float32(inputs**-0.5)
    groups = outputs, -(-inputs // (packed.group or inputs))
    zeros = blocks = None
    if packed.has_zero_points:
        zeros = random.integers(0, 17, groups, dtype=np.uint8)
    if packed.has_block_scales:
        shape = -(-outputs // BLOCK_SCALE_ROWS), packed.tiles(outputs, inputs)[1]
        blocks = random.uniform(0.5, 2, shape).astype(np.float32).repeat(BLOCK_SCALE_ROWS, axis=0)[:outputs]
    return QuantizedMatrix(codes, rows, _group_scales(packed, groups, random), zeros, blocks)


def _group_scales(
    packed: PackedFormat, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray | None:
    match packed.group_scales:
        case "f16":
            return random.uniform(-0.01, 0.1, shape).astype(np.float16)
        case "exponent":
            return random.integers(0, 27, shape, dtype=np.uint8)
        case "e4m3":
            scales = random.integers(0x30, 0xF8, shape, dtype=np.uint8)
            scales[random.random(shape) < 0.1] = 0
            return scales
    return None
