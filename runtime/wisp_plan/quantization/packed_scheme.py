"""Packed format that holds a checkpoint's scheme without loss."""

from __future__ import annotations

from wisp_plan.quantization.packed_format import BLOCK_SCALE_ROWS, PACKED_FORMATS, PackedFormat
from wisp_plan.quantization.scheme import Scheme

INT4_GROUPS = (128, 64, 32)
"""Groups of int4 that are packed, the fewest scales first."""

_BLOCKS = {"Q4_0": "int4_g32"}
"""GGUF's types whose numbers and scales are those of a packed format."""


def packed_scheme(scheme: Scheme) -> PackedFormat | None:
    """Return the packed format of a scheme; None: it is dequantized.

    A scale a tensor becomes one a row, and a larger group equal smaller ones. Act-order is dequantized: its
    groups lie scattered over the columns.
    """
    if scheme.is_act_ordered:
        return None
    match scheme.kind:
        case "fp8":
            return PACKED_FORMATS.get(_fp8(scheme))
        case "int8":
            is_row = scheme.rows <= 1 and not scheme.columns and not scheme.has_zero_points
            return PACKED_FORMATS["int8"] if is_row else None
        case "int4":
            return PACKED_FORMATS.get(_int4(scheme))
        case "mxfp4" | "nvfp4":
            return PACKED_FORMATS[scheme.kind]
        case "block":
            return PACKED_FORMATS.get(_BLOCKS.get(scheme.block_type, ""))
    return None


def int4_name(columns: int, *, has_zero_points: bool = False) -> str:
    """Return the name of the int4 whose group divides ``columns`` (0: the whole axis), or an empty one."""
    group = next((group for group in INT4_GROUPS if columns % group == 0), 0)
    if not group:
        return ""
    suffix = "" if group == INT4_GROUPS[0] else f"_g{group}"
    return f"int4{suffix}" + "_zero" * has_zero_points


def _fp8(scheme: Scheme) -> str:
    if scheme.rows <= 1 and not scheme.columns:
        return "fp8"
    block = PACKED_FORMATS["fp8_block"]
    is_block = scheme.rows % BLOCK_SCALE_ROWS == 0 and scheme.columns % block.tile_columns == 0
    return block.name if is_block else ""


def _int4(scheme: Scheme) -> str:
    return int4_name(scheme.columns, has_zero_points=scheme.has_zero_points) if scheme.rows <= 1 else ""
