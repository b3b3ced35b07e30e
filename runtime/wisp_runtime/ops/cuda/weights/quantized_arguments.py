"""Arguments of the kernels that pack and round quantized rows: pointers, then sizes."""

from __future__ import annotations

import ctypes


class PackArguments(ctypes.Structure):
    """``PackArgs`` of ``pack_quantized.cu``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "row_scales", "group_scales", "zero_points")),
        *((name, ctypes.c_void_p) for name in ("block_scales", "storage", "not_finite")),
        *((name, ctypes.c_longlong) for name in ("block_section", "row_section")),
        *((name, ctypes.c_int32) for name in ("rows", "first", "columns", "column_tiles", "order")),
        *((name, ctypes.c_int32) for name in ("group", "slice_bytes", "group_scale_bytes")),
    )


class QuantizeArguments(ctypes.Structure):
    """``QuantizeArgs`` of ``quantize_rows.cu``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "codes", "row_scales", "group_scales")),
        *((name, ctypes.c_void_p) for name in ("zero_points", "block_scales", "not_finite")),
        *((name, ctypes.c_int32) for name in ("columns", "group", "column_tiles")),
    )
