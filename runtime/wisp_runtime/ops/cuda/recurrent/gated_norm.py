"""Gated norm of a recurrent mixer's heads on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_apart, require_true, row_count
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.recurrent.arguments import NormShape, norm_lanes
from wisp_runtime.ops.cuda.recurrent.conv import check_rows

_OP = "gated_norm"
_THREADS = constants()["gated_norm_threads"]
_MAX_SIZE = 256


@dataclass(frozen=True, slots=True)
class _Plan:
    grid: tuple[int]
    shape: NormShape
    out_shape: tuple[int, int]


class GatedNorm:
    """Norm and gate heads.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernel = device.kernels.get(_OP)
        self._workspace = device.workspace
        self._plans: dict[object, _Plan] = {}

    def __call__(
        self, x: Array, z: Array, weight: Array, rows: Array | None, *, eps: float, out_name: str
    ) -> Array:
        """Return ``rmsnorm(x) * silu(z)`` of each head, of the given rows.

        Args:
            x: ``[N, H Dv]`` bf16, contiguous.
            z: ``[N, H Dv]`` bf16, rows apart by a multiple of 8 elements.
            weight: ``[Dv]`` float32; Dv is a multiple of 8 up to 256.
            rows: ``[R]`` int64, inside of ``x``; None: all, R = N.
            eps: added to the mean square.
            out_name: buffer of the workspace that takes the result.

        Returns:
            ``[R, H Dv]`` bf16.

        Raises:
            ShapeError: an array differs from the above.
        """
        key = x.shape, z.strides, weight.shape, None if rows is None else rows.shape, eps
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, _plan(x, z, weight, rows, eps))
        out = self._workspace.array(out_name, plan.out_shape, BF16)
        require_apart(_OP, out_name, out, x=x)
        if plan.grid[0]:
            self._kernel.launch(plan.grid, _THREADS, x, z, weight, rows, out, plan.shape)
        return out


def _plan(x: Array, z: Array, weight: Array, rows: Array | None, eps: float) -> _Plan:
    size, (count, width) = len(weight), x.shape
    fits = size % 8 == 0 and 0 < size <= _MAX_SIZE and width % size == 0
    require_true(fits, f"{_OP}: Dv is {size} of {width} columns, must be a multiple of 8 up to {_MAX_SIZE}")
    require(_OP, "x", x, (count, width), BF16)
    require(_OP, "weight", weight, (size,), np.float32)
    check_rows(_OP, "z", z, (count, width))
    count = row_count(_OP, rows, count)
    heads, lanes = width // size, norm_lanes(size)
    shape = NormShape(z.strides[0] // 2, count, heads, size, lanes, eps)
    return _Plan((-(-count * heads * lanes // _THREADS),), shape, (count, width))
