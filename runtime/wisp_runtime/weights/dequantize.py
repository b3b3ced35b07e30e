"""Dequantization of a checkpoint's rows on the host: the reference, and the way of devices without kernels.

A layer's numbers are codes, each with a scale and a zero point of its block: ``w = (code - zero) * scale``.
Layouts: ``docs/checkpoints.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from wisp_plan.quantization.scheme import Scheme
from wisp_plan.quantization.stored_format import VALUES
from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.quantized_packing import E2M1

_MIDDLE = {"int4": 8.0, "int8": 128.0}


def dequantize(scheme: Scheme, parts: Mapping[str, Array], shape: tuple[int, int]) -> Array:
    """Return the weights ``[R, in]``, float32.

    Args:
        scheme: meaning of the numbers.
        parts: stored parts by name, ``[rows, columns]`` each, beginning with a block's or word's first row.
        shape: R and in.
    """
    if scheme.block_type:
        from wisp_runtime.weights.gguf_blocks.dequantize import dequantize as dequantize_blocks  # GGUF alone

        return dequantize_blocks(scheme.block_type, parts[VALUES])[:, : shape[1]]
    if scheme.kind == "plain":
        return parts[VALUES].astype(np.float32)
    numbers = numbers_of(scheme, parts, shape)
    numbers *= _spread(scales_of(scheme, parts), scheme.rows, scheme.columns, shape, parts.get("group"))
    return numbers


def numbers_of(scheme: Scheme, parts: Mapping[str, Array], shape: tuple[int, int]) -> Array:
    """Return the numbers that are scaled ``[R, in]``, float32: codes without their zero points."""
    numbers = _numbers(scheme, parts[VALUES], shape)
    if "zero_point" in parts:
        zeros = zero_points_of(scheme, parts["zero_point"], shape[0])
        numbers -= _spread(zeros, 1, scheme.columns, shape, parts.get("group"))
    return numbers


def _numbers(scheme: Scheme, values: Array, shape: tuple[int, int]) -> Array:
    """Return the numbers that stand for the weights: float32, a symmetric scheme's about zero."""
    match scheme.kind:
        case "fp8" | "mxfp8":
            return values.astype(np.float32)
        case "mxfp4" | "nvfp4":
            return E2M1[_nibbles(values)]
    if not scheme.is_packed:
        return values.astype(np.float32)
    codes = codes_of_rows(scheme, values) if scheme.nibble_rows else _codes(scheme, values)
    numbers = codes[: shape[0], : shape[1]].astype(np.float32)
    return numbers if scheme.has_zero_points else numbers - _MIDDLE[scheme.kind]


def _nibbles(values: Array) -> Array:
    """Return the nibbles of bytes, a byte's low one first: ``[R, 2 C]``."""
    both = np.empty((*values.shape, 2), np.uint8)
    both[..., 0], both[..., 1] = values & 15, values >> 4
    return both.reshape(len(values), -1)


def _codes(scheme: Scheme, words: Array) -> Array:
    """Return the codes of int32 words, the lowest bits first."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return _nibbles(octets) if scheme.kind == "int4" else octets


def codes_of_rows(scheme: Scheme, words: Array) -> Array:
    """Return the nibbles of words of eight rows, in the order of the rows: ``[8 R, C]``."""
    codes = np.empty((len(words), 8, words.shape[1]), np.uint8)
    for nibble, row in enumerate(scheme.nibble_rows):
        codes[:, row] = (words >> (4 * nibble)) & 15
    return codes.reshape(-1, words.shape[1])


def zero_points_of(scheme: Scheme, words: Array, rows: int) -> Array:
    """Return the zero points ``[R, groups]`` of words that hold those of several rows.

    GPTQ v1 subtracts one from each of a word's by one subtraction, which borrows at a zero point of 0.
    """
    if scheme.nibble_rows:
        return codes_of_rows(scheme, words)[:rows].astype(np.float32)
    whole = np.ascontiguousarray(words.T).view(np.uint32)
    if scheme.stores_zero_minus_one:
        whole = whole + np.uint32(0x11111111 if scheme.kind == "int4" else 0x01010101)
    return np.ascontiguousarray(_codes(scheme, whole).T)[:rows].astype(np.float32)


def scales_of(scheme: Scheme, parts: Mapping[str, Array]) -> Array:
    """Return the scales of blocks, float32, times a tensor's."""
    scales = parts["scale"]
    if scales.dtype == np.uint8:
        scales = scales.view(ml_dtypes.float8_e8m0fnu)
    scales = scales.astype(np.float32)
    if "tensor_scale" in parts:
        whole = parts["tensor_scale"].astype(np.float32)
        scales = scales / whole if scheme.divides_by_tensor_scale else scales * whole
    return scales


def _spread(values: Array, rows: int, columns: int, shape: tuple[int, int], group: Array | None) -> Array:
    """Repeat a value of each block so that it broadcasts to ``shape``.

    Args:
        rows, columns: extent of a block; 0: the whole axis.
        group: ``[1, in]``, the group of each column; None: groups follow each other.
    """
    if rows > 1:
        values = np.repeat(values, rows, axis=0)[: shape[0]]
    if columns == 0:
        return values
    if group is not None:
        return values[:, group[0]]
    return np.repeat(values, columns, axis=1)[:, : shape[1]]
