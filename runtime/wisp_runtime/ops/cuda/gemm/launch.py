"""Launch of a GEMM, and its arguments."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from wisp_runtime.ops.cuda.device.kernels import Kernel


class GemmArguments(ctypes.Structure):
    """``GemmArgs`` of ``tile_scheduler.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "partials", "arrivals")),
        *((name, ctypes.c_int32) for name in ("rows", "k_tiles", "tokens", "out_columns", "m_tiles")),
        *((name, ctypes.c_int32) for name in ("n_tiles", "group", "full_tiles", "streams", "ranges")),
        *((name, ctypes.c_int32) for name in ("pairs", "stages", "is_read_once", "shares_tokens")),
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch for all matrices of a shape: their pointers are put into the arguments, which are copied.

    Attributes:
        tokens: tensor map of x, or its address.
        arguments: structure with a weight and a bias.
        quantized: arguments of a quantized matrix, :class:`.quantized_launch.QuantizedArguments`, or None.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    cluster: int
    tokens: Any
    arguments: Any
    quantized: Any = None
