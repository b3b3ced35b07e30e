"""Random weights of a packed format on the GPU, and the float32 that they stand for.

Rows are those of the packed matrix: callers know the permutation. The packing is the reference's
(``wisp_runtime/ops/reference/quantized_packing.py``) on CuPy; :func:`check_packing` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import cupy as cp
import ml_dtypes
import numpy as np

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_runtime.ops.reference.quantized_packing import E2M1, QuantizedMatrix, pack_quantized

DEVIATION = 0.02
_LARGEST = {"e4m3": 448.0, "int8": 127.0, "int4": 7.0, "e2m1": 6.0}
_AXES = {"e4m3": (0, 4, 1, 5, 3, 8, 6, 7, 2, 9), "int4": (0, 4, 1, 5, 3, 8, 6, 9, 2, 7)}
_AXES |= {"int8": _AXES["e4m3"], "e2m1": (0, 4, 1, 5, 3, 8, 6, 9, 7, 2)}


@dataclass(frozen=True, slots=True)
class RandomMatrix:
    """A random matrix ``[out, in]``, both multiples of 256.

    Attributes:
        storage: uint8, as a GPU holds it.
        codes, numbers: stored codes, and a float32 for each of the 256.
        scales: ``[out, in / width]`` float32.
        zeros: ``[out, in / width]`` float32, or None.
    """

    storage: Any
    codes: Any
    numbers: Any
    scales: Any
    zeros: Any

    def dense(self) -> Any:
        """Return the weights as float32."""
        width = self.codes.shape[1] // self.scales.shape[1]
        weights = self.numbers[self.codes.astype(np.int32)]
        if self.zeros is not None:
            weights -= cp.repeat(self.zeros, width, axis=1)
        weights *= cp.repeat(self.scales, width, axis=1)
        return weights


def random_matrix(packed: PackedFormat, out: int, into: int, random: Any) -> RandomMatrix:
    """Make a matrix of normal numbers whose deviation is about 0.02."""
    parts = _random_parts(packed, out, into, random)
    return RandomMatrix(_packed_storage(packed, parts), parts.codes, *_meaning(packed, parts))


def check_packing(packed: PackedFormat) -> None:
    """Compare a small matrix with the reference's packing, byte for byte."""
    parts = _random_parts(packed, 256, 512, cp.random.RandomState(1))
    host = QuantizedMatrix(
        parts.codes.get(),
        parts.row_scales.get(),
        *(None if each is None else each.get() for each in (parts.group_scales, parts.zero_points)),
        None if parts.block_scales is None else parts.block_scales.get(),
    )
    assert np.array_equal(pack_quantized(packed, host), _packed_storage(packed, parts).get()), packed.name


def _random_parts(packed: PackedFormat, out: int, into: int, random: Any) -> QuantizedMatrix:
    deviation = _LARGEST[packed.numbers] / 3  # of the numbers
    table = cp.asarray(_normal_codes(packed, deviation))
    codes = table[random.randint(0, 256, (out, into))]
    spread = (0.75 + 0.5 * random.rand(out)).astype(np.float32) * np.float32(DEVIATION / deviation)
    groups = zeros = blocks = None
    if packed.has_block_scales:
        blocks = (0.5 + random.rand(out // 8, into // 128)).astype(np.float32) * np.float32(
            DEVIATION / deviation
        )
        blocks, spread = cp.repeat(blocks, 8, axis=0), cp.ones(out, np.float32)
    shape = (out, into // packed.group) if packed.group else (0, 0)
    if packed.group_scales == "f16":
        groups = ((0.5 + random.rand(*shape)) * DEVIATION / deviation).astype(np.float16)
        spread = (0.75 + 0.5 * random.rand(out)).astype(np.float32)
    elif packed.group_scales == "exponent":
        groups = random.randint(11, 15, shape).astype(np.uint8)
    elif packed.group_scales == "e4m3":
        values = ((0.5 + random.rand(*shape)) * 128).astype(np.float16)  # 1 is 128
        groups, spread = ((values.view(np.uint16) + 64) >> 7).astype(np.uint8), spread * np.float32(128)
    if packed.has_zero_points:
        zeros = random.randint(6, 11, shape).astype(np.uint8)
    return QuantizedMatrix(codes, spread, groups, zeros, blocks)


def _normal_codes(packed: PackedFormat, deviation: float) -> np.ndarray:
    """Return 256 codes whose numbers are equally likely quantiles."""
    values = np.array([NormalDist(0, deviation).inv_cdf((i + 0.5) / 256) for i in range(256)], np.float32)
    match packed.numbers:
        case "e4m3":
            return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        case "e2m1":
            return np.abs(values[:, None] - E2M1).argmin(-1).astype(np.uint8)
        case "int8":
            return (np.rint(values).clip(-127, 127) + 128).astype(np.uint8)
    return (np.rint(values).clip(-8, 7) + 8).astype(np.uint8)


def _meaning(packed: PackedFormat, parts: QuantizedMatrix) -> tuple[Any, Any, Any]:
    """Return the codes' numbers, the scales of groups and the zero points."""
    codes = np.arange(256, dtype=np.uint8)
    numbers, zeros, scales = codes.astype(np.float32), parts.zero_points, parts.row_scales[:, None]
    match packed.numbers:
        case "e4m3":
            numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        case "e2m1":
            numbers = E2M1[codes % 16]
        case "int8":
            numbers -= 128
        case "int4":
            numbers -= 0 if packed.has_zero_points else 8
    if packed.has_block_scales:
        scales = parts.block_scales * scales
    if packed.group_scales == "f16":
        scales = parts.group_scales.astype(np.float32) * scales
    elif packed.group_scales == "exponent":
        scales = cp.exp2(parts.group_scales.astype(np.float32) - 13) * scales
    elif packed.group_scales == "e4m3":
        values = (parts.group_scales.astype(np.uint16) << 7).view(np.float16)
        scales = values.astype(np.float32) * np.float32(2.0**-14) * scales
    return cp.asarray(numbers), scales, None if zeros is None else zeros.astype(np.float32)


def _packed_storage(packed: PackedFormat, parts: QuantizedMatrix) -> Any:
    out, into = parts.codes.shape
    block_scales, row_scales, size = packed.sections(out, into)
    storage = cp.zeros(size, np.uint8)
    slices = [_packed_codes(packed, parts.codes)]
    for values in (parts.group_scales, parts.zero_points):
        if values is not None:
            ordered = values.reshape(out // 64, 4, 2, 8, into // packed.tile_columns, packed.groups)
            ordered = cp.ascontiguousarray(ordered.transpose(0, 4, 1, 3, 5, 2)).view(np.uint8)
            slices.append(ordered.reshape(*slices[0].shape[:3], -1))
    tiles = cp.concatenate(slices, axis=-1).reshape(-1)
    storage[: tiles.size] = tiles
    if parts.block_scales is not None:
        scales = parts.block_scales.reshape(out // 64, 4, 2, 8, -1)[:, :, :, 0].transpose(0, 3, 1, 2)
        octets = cp.ascontiguousarray(scales).view(np.uint8).reshape(-1)
        storage[block_scales : block_scales + octets.size] = octets
    storage[row_scales : row_scales + 4 * out] = cp.ascontiguousarray(parts.row_scales).view(np.uint8)
    return storage


def _packed_codes(packed: PackedFormat, codes: Any) -> Any:
    out, into = codes.shape
    columns = packed.tile_columns
    fragments = codes.reshape(out // 64, 4, 2, 8, into // columns, 4, columns // 64, 2, 4, 2)
    ordered = cp.ascontiguousarray(fragments.transpose(_AXES[packed.numbers]))
    shape = (out // 64, into // columns, 4, 2048)
    if packed.bits == 8:
        return ordered.reshape(shape)
    if packed.numbers == "int4":
        return (ordered[..., 0] | ordered[..., 1] << 4).reshape(shape)
    words = ordered.astype(np.uint16).reshape(-1, 2, 2, 2)  # column, side, half
    sizes, signs = words & 7, words >> 3
    if packed.group_scales == "e4m3":
        packed_halves = cp.zeros((len(words), 2), np.uint16)
        for side, half, code, sign in ((0, 0, 9, 15), (0, 1, 6, 12), (1, 0, 3, 14), (1, 1, 0, 13)):
            packed_halves |= sizes[:, :, side, half] << code | signs[:, :, side, half] << sign
        return packed_halves.view(np.uint8).reshape(shape)
    packed_words = cp.zeros(len(words), np.uint32)
    for column, side, half in np.ndindex(2, 2, 2):
        number = 2 * side + column
        packed_words |= sizes[:, column, side, half].astype(np.uint32) << (4 * (4 * half + number))
        packed_words |= signs[:, column, side, half].astype(np.uint32) << (8 * number + 7 - 4 * half)
    return packed_words.view(np.uint8).reshape(shape)
