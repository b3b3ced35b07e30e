"""Gather of an activation's rows on the GPU: after the last mixer few rows of a step are needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_apart, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants

_THREADS = constants()["row_threads"]
_COLUMNS_A_BLOCK = 8 * _THREADS


@dataclass(frozen=True, slots=True)
class _Plan:
    grid: tuple[int, int]
    shape: tuple[int, int]
    columns: np.int32


class GatherRows:
    """Gather rows.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernel = device.kernels.get("gather_rows")
        self._workspace = device.workspace
        self._plans: dict[object, _Plan] = {}

    def __call__(self, x: Array, rows: Array, *, out_name: str) -> Array:
        """Return row ``rows[i]`` of ``x`` for each i.

        Args:
            x: ``[N, in]`` bf16, contiguous.
            rows: ``[R]`` int64, inside of ``x``.
            out_name: buffer of the workspace that takes the result.

        Returns:
            ``[R, in]`` bf16.

        Raises:
            ShapeError: an array differs from the above, or ``in`` is no multiple of 8.
        """
        key = x.shape, rows.shape
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, _plan(x, rows))
        out = self._workspace.array(out_name, plan.shape, BF16)
        require_apart("gather_rows", out_name, out, x=x)
        if rows.size:
            self._kernel.launch(plan.grid, _THREADS, x, rows, out, plan.columns)
        return out


def _plan(x: Array, rows: Array) -> _Plan:
    require_true(x.ndim == 2, f"gather_rows: x is {list(x.shape)}, must be [N, in]")
    columns = x.shape[1]
    fits = columns > 0 and columns % 8 == 0
    require_true(fits, f"gather_rows: x has {columns} columns, must be a multiple of 8")
    require("gather_rows", "x", x, x.shape, BF16)
    require("gather_rows", "rows", rows, (rows.size,), np.int64)
    grid = rows.size, -(-columns // _COLUMNS_A_BLOCK)
    return _Plan(grid, (rows.size, columns), np.int32(columns))
