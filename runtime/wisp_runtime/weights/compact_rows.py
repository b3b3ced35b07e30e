"""Rows of a quantized weight as codes, scales and minima: the checkpoint's numbers, none of them rounded."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.quantization.stored_format import VALUES
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.upload import CompactRows
from wisp_runtime.weights.dequantize import numbers_of, scales_of

_E2M1 = ("mxfp4", "nvfp4")


def compact_rows(
    layout: CompactFormat, scheme: Scheme, parts: Mapping[str, Array], shape: tuple[int, int]
) -> CompactRows:
    """Return rows in a compact format that holds their scheme.

    Args:
        layout: format of the weight, whose groups divide the scheme's.
        scheme: meaning of the numbers.
        parts: stored parts by name, as of :func:`.dequantize.dequantize`.
        shape: R and in.
    """
    if scheme.block_type:
        from wisp_runtime.weights.gguf_blocks.dequantize import scaled_codes  # GGUF alone

        decoded = scaled_codes(scheme.block_type, parts[VALUES])
        codes, scales, minima = decoded.codes, decoded.scales, decoded.minima
    else:
        codes, scales, minima = numbers_of(scheme, parts, shape), scales_of(scheme, parts), None
        if scheme.kind in _E2M1:
            codes, scales = codes * np.float32(2), scales * np.float32(0.5)
    groups = shape[1] // layout.group
    wide = None if minima is None else _of_groups(minima, scheme, shape, groups)
    if wide is None and layout.has_minima:
        wide = np.zeros((shape[0], groups), np.float32)
    return CompactRows(_codes(codes, layout), _of_groups(scales, scheme, shape, groups), wide)


def _codes(codes: Array, layout: CompactFormat) -> Array:
    if layout.code == "int8":
        return codes.astype(np.int8, copy=False)
    bits: Array = codes.astype(np.float32).view(np.uint32) >> 16  # exact: numbers of eight significant bits
    return bits.astype(np.uint16)


def _of_groups(values: Array, scheme: Scheme, shape: tuple[int, int], groups: int) -> Array:
    """Return a value of each row and group ``[R, G]`` from those of a scheme's blocks."""
    if scheme.rows > 1:
        values = np.repeat(values, scheme.rows, axis=0)[: shape[0]]
    of_row = np.broadcast_to(values, (shape[0], values.shape[1]))
    columns = math.ceil(shape[1] / of_row.shape[1]) if scheme.block_type else scheme.columns or shape[1]
    repeats = columns * groups // shape[1]
    return np.repeat(of_row, repeats, axis=1)[:, :groups].astype(np.float32)
