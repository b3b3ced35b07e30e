"""Codes and scales of a checkpoint's quantized rows, as a device holds them: nothing is dequantized.

:mod:`.dequantize` says what the stored numbers mean; :mod:`wisp_plan.quantization.packed_scheme` which packed
format holds them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wisp_plan.quantization.packed_format import PackedFormat
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.quantization.stored_format import VALUES
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.upload import QuantizedRows
from wisp_runtime.ops.reference.quantizers import MAX_EXPONENT_BYTE, packed_e4m3, power_of_two
from wisp_runtime.weights.dequantize import codes_of_rows, scales_of, zero_points_of

_E8M0_BIAS = 127
_PACKED_BIAS = 13  # byte b of a packed exponent stands for 2^(b - 13)
_E4M3_FACTOR = np.float32(128)  # a packed E4M3 stands for 2^-7 times it


def held_rows(
    packed: PackedFormat, scheme: Scheme, parts: Mapping[str, Array], shape: tuple[int, int]
) -> QuantizedRows:
    """Return rows ``[R, in]`` in a packed format.

    Args:
        packed: format that holds the scheme.
        scheme: meaning of the numbers.
        parts: stored parts by name, ``[rows, columns]`` each, as of :func:`.dequantize.dequantize`; int8 is
            overwritten.
        shape: R and in.
    """
    if scheme.block_type:
        return _of_blocks(packed, scheme, parts[VALUES])
    codes = _codes(packed, scheme, parts[VALUES], shape)
    match packed.numbers, packed.group_scales:
        case "int4", _:
            return _int4(packed, scheme, parts, codes, shape)
        case _, "exponent":
            return _mxfp4(parts, codes)
        case _, "e4m3":
            return _nvfp4(scheme, parts, codes)
    scales = scales_of(scheme, parts)
    if packed.has_block_scales:
        return _blocks(packed, scheme, scales, codes, shape)
    return QuantizedRows(codes, np.ascontiguousarray(np.broadcast_to(scales[:, 0], (shape[0],))))


def _of_blocks(packed: PackedFormat, scheme: Scheme, blocks: Array) -> QuantizedRows:
    """Return the rows of GGUF's blocks of int4; their scales may be below zero."""
    assert packed.numbers == "int4"
    from wisp_runtime.weights.gguf_blocks.dequantize import scaled_codes  # GGUF alone

    decoded = scaled_codes(scheme.block_type, blocks)
    codes = decoded.codes.view(np.uint8) + np.uint8(8)
    row_scales = power_of_two(np.abs(decoded.scales).max(axis=1))
    divided = np.divide(
        decoded.scales, row_scales[:, None], out=np.ones_like(decoded.scales), where=row_scales[:, None] > 0
    )
    return QuantizedRows(codes[:, ::2] | codes[:, 1::2] << 4, row_scales, divided.astype(np.float16))


def _codes(packed: PackedFormat, scheme: Scheme, values: Array, shape: tuple[int, int]) -> Array:
    rows, columns = shape
    if scheme.nibble_rows:
        codes = codes_of_rows(scheme, values)[:rows, :columns]
        return codes[:, ::2] | codes[:, 1::2] << 4
    octets = np.ascontiguousarray(values).view(np.uint8)[:rows, : columns * packed.bits // 8]
    if packed.numbers == "int8" and not scheme.is_packed:
        np.bitwise_xor(octets, np.uint8(0x80), out=octets)  # adds 128
    return octets


def _blocks(
    packed: PackedFormat, scheme: Scheme, scales: Array, codes: Array, shape: tuple[int, int]
) -> QuantizedRows:
    rows, columns = shape
    wide = np.repeat(scales, scheme.rows, axis=0)[:rows]
    wide = np.repeat(wide, scheme.columns // packed.tile_columns, axis=1)
    tiles = packed.tiles(rows, columns)[1]
    blocks = np.ascontiguousarray(wide[:, :tiles])
    return QuantizedRows(codes, np.ones(rows, np.float32), block_scales=blocks)


def _int4(
    packed: PackedFormat, scheme: Scheme, parts: Mapping[str, Array], codes: Array, shape: tuple[int, int]
) -> QuantizedRows:
    rows, columns = shape
    scales, times = scales_of(scheme, parts), (scheme.columns or columns) // packed.group
    row_scales = scales[:, 0] if scheme.columns == 0 else power_of_two(np.abs(scales).max(axis=1))
    row_scales = np.ascontiguousarray(np.broadcast_to(row_scales, (rows,)))
    stored = np.divide(scales, row_scales[:, None], out=np.ones_like(scales), where=row_scales[:, None] != 0)
    zeros = None
    if scheme.has_zero_points:
        zeros = zero_points_of(scheme, parts["zero_point"], rows).astype(np.uint8)
        zeros = np.repeat(zeros, times, axis=1)
    return QuantizedRows(codes, row_scales, np.repeat(stored.astype(np.float16), times, axis=1), zeros)


def _mxfp4(parts: Mapping[str, Array], codes: Array) -> QuantizedRows:
    exponents = np.ascontiguousarray(parts["scale"]).view(np.uint8).astype(np.int32)
    largest = exponents.max(axis=1, keepdims=True)
    octets = exponents - largest + MAX_EXPONENT_BYTE
    if (octets < 0).any():  # under 2^-26 of the row's largest: zeros
        group_bytes = codes.shape[1] // octets.shape[1]
        codes = np.where(np.repeat(octets < 0, group_bytes, axis=1), np.uint8(0), codes)
    powers = largest[:, 0] - _E8M0_BIAS - MAX_EXPONENT_BYTE + _PACKED_BIAS
    row_scales = np.ldexp(np.float32(1), powers)
    return QuantizedRows(codes, row_scales, np.maximum(octets, 0).astype(np.uint8))


def _nvfp4(scheme: Scheme, parts: Mapping[str, Array], codes: Array) -> QuantizedRows:
    whole = parts["tensor_scale"].astype(np.float32).reshape(-1)[:1]
    if scheme.divides_by_tensor_scale:
        whole = np.float32(1) / whole
    row_scales = np.repeat(whole * _E4M3_FACTOR, len(codes))
    return QuantizedRows(codes, row_scales, packed_e4m3(parts["scale"].view(np.uint8)))
