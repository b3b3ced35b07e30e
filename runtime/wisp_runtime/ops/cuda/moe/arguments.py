"""Arguments of a mixture's kernels: the structures that they take by value."""

from __future__ import annotations

import ctypes

from wisp_plan.spec.ffn import Activation
from wisp_runtime.ops.cuda.gemm.portable_plan import QuantizedArguments

STORES: dict[Activation, int] = {"silu": 1, "clamped_swiglu": 3, "relu2": 4}
"""``Store`` of ``mma_output.cuh`` for the first GEMM of an expert."""

PLAIN_STORE = 0
"""The same for the second."""


class RouterArguments(ctypes.Structure):
    """``RouterArgs`` of ``router_tile.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "gate", "out")),
        ("x_stride", ctypes.c_longlong),
        *((name, ctypes.c_int32) for name in ("tokens", "experts", "columns", "stride")),
    )


class ChoiceArguments(ctypes.Structure):
    """``ChoiceArgs`` of ``expert_choice.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("bias", "correction", "experts", "weights")),
        *((name, ctypes.c_int32) for name in ("count", "chosen", "groups", "chosen_groups")),
        *((name, ctypes.c_int32) for name in ("bias_is_float", "correction_is_float")),
        *((name, ctypes.c_int32) for name in ("is_sigmoid", "normalizes")),
        ("scale", ctypes.c_float),
    )


class ChooseArguments(ctypes.Structure):
    """``ChooseArgs`` of ``choose_experts.cu``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "gates")),
        ("stride", ctypes.c_longlong),
        ("choice", ChoiceArguments),
        ("tokens", ctypes.c_int32),
    )


class SortArguments(ctypes.Structure):
    """``SortArgs`` of ``pair_order.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("experts", "positions", "rows", "tiles", "tile_count")),
        *((name, ctypes.c_void_p) for name in ("loads", "calls")),
        *((name, ctypes.c_int32) for name in ("pairs", "chosen", "tile_tokens", "has_shared")),
    )


class RouteArguments(ctypes.Structure):
    """``RouteArgs`` of ``route_tokens.cu``."""

    _fields_ = (
        ("router", RouterArguments),
        ("choice", ChoiceArguments),
        ("order", SortArguments),
        *((name, ctypes.c_void_p) for name in ("gates", "arrivals")),
    )


class SumArguments(ctypes.Structure):
    """``SumArgs`` of ``expert_sum.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "positions", "weights", "added", "gates")),
        *((name, ctypes.c_int32) for name in ("columns", "chosen")),
    )


class NormArguments(ctypes.Structure):
    """``NormArgs`` of ``combine_rmsnorm.cu``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("residual", "weight", "rows", "y")),
        *((name, ctypes.c_float) for name in ("eps", "offset")),
    )


class ExpertArguments(ctypes.Structure):
    """``ExpertArgs`` of ``token_rows.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tiles", "tile_count", "rows")),
        ("matrix_bytes", ctypes.c_longlong),
        ("store", ctypes.c_int32),
    )


class ExpertTiles(ctypes.Structure):
    """``ExpertTiles`` of Hopper's ``experts.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tiles", "tile_count")),
        ("distance", ctypes.c_longlong),
    )


class StreamGemm(ctypes.Structure):
    """``StreamGemm`` of Hopper's ``stream_experts.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "rows")),
        ("matrix_bytes", ctypes.c_longlong),
        ("matrix", QuantizedArguments),
    )


class StreamArguments(ctypes.Structure):
    """``StreamArgs`` of the same."""

    _fields_ = (
        ("gemms", StreamGemm * 2),
        *((name, ctypes.c_void_p) for name in ("tiles", "tile_count", "progress")),
        ("stages", ctypes.c_int32),
    )
