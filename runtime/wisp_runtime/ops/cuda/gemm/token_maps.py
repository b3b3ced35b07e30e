"""Tensor maps of activations, by which Hopper's GEMMs copy them."""

from __future__ import annotations

from typing import Any

import cupy as cp

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember
from wisp_runtime.ops.cuda.device.gpu import tensor_map_2d
from wisp_runtime.ops.cuda.gemm.tiling import BLOCK_K


class TokenMaps:
    """Make maps, and keep them."""

    def __init__(self) -> None:
        self._maps: dict[Any, Any] = {}

    def __call__(self, x: Array, width: int) -> Any:
        """Describe ``x``, in boxes of ``width`` rows, with as many rows as its memory has: one map for any N.

        A box beyond a map's edge is slow, and making a map takes longer than a launch.
        """
        memory, stride = x.data.mem, x.strides[0]
        spare_bytes = memory.ptr + memory.size - x.data.ptr - x.shape[1] * BF16.itemsize
        shape = (1 + spare_bytes // stride, x.shape[1])
        key = x.data.ptr, shape, stride, width
        tensor_map = self._maps.get(key)
        if tensor_map is None:
            rows = cp.ndarray(shape, BF16, x.data, x.strides)
            tensor_map = remember(self._maps, key, tensor_map_2d(rows, width, BLOCK_K))
        return tensor_map
