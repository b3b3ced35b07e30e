"""Attention's output gate on the GPU: each channel of the heads' results times a sigmoid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import (
    remember,
    require,
    require_aligned,
    require_apart,
    require_true,
    row_count,
)
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants

_OP = "gate_heads"
_THREADS = constants()["row_threads"]
_COLUMNS_A_BLOCK = 8 * _THREADS


@dataclass(frozen=True, slots=True)
class _Plan:
    grid: tuple[int, int]
    shape: tuple[int, int]
    scalars: tuple[np.int64, np.int32]  # gate's stride, columns


class GateHeads:
    """Gate the results of heads.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._device, self._workspace = device, device.workspace
        self._plans: dict[object, _Plan] = {}

    def __call__(self, mixed: Array, gate: Array, rows: Array | None, *, out_name: str) -> Array:
        """Return ``mixed * sigmoid(gate)``; with ``rows`` row ``rows[i]`` of it for each i.

        Args:
            mixed: ``[N, C]`` bf16, contiguous.
            gate: ``[N, C]`` bf16, rows apart by a multiple of 8 elements.
            rows: ``[R]`` int64, inside of ``mixed``; None: all, and ``mixed`` itself takes the result.
            out_name: buffer of the workspace that takes the rows that are given.

        Returns:
            ``[N, C]`` or ``[R, C]`` bf16.

        Raises:
            ShapeError: an array differs from the above, or C is no multiple of 8.
        """
        key = mixed.shape, gate.shape, gate.strides, None if rows is None else rows.shape
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, _plan(mixed, gate, rows))
        out = mixed if rows is None else self._workspace.array(out_name, plan.shape, BF16)
        if rows is not None:
            require_apart(_OP, out_name, out, mixed=mixed)
        if plan.shape[0]:
            kernel = self._device.kernels.get(_OP)
            kernel.launch(plan.grid, _THREADS, mixed, gate, rows, out, *plan.scalars)
        return out


def _plan(mixed: Array, gate: Array, rows: Array | None) -> _Plan:
    require_true(mixed.ndim == 2, f"{_OP}: mixed is {list(mixed.shape)}, must be [N, C]")
    tokens, columns = mixed.shape
    fits = columns > 0 and columns % 8 == 0
    require_true(fits, f"{_OP}: mixed has {columns} columns, must be a multiple of 8")
    require(_OP, "mixed", mixed, mixed.shape, BF16)
    same = gate.shape == mixed.shape and gate.dtype == BF16
    require_true(same, f"{_OP}: gate is {list(gate.shape)} {gate.dtype}, must be {list(mixed.shape)} bf16")
    is_dense = gate.strides[1] == BF16.itemsize and gate.strides[0] % 16 == 0
    require_true(is_dense, f"{_OP}: gate has strides {gate.strides}, must be rows at multiples of 16 bytes")
    require_aligned(_OP, "gate", gate)
    count = row_count(_OP, rows, tokens)
    scalars = np.int64(gate.strides[0] // BF16.itemsize), np.int32(columns)
    return _Plan((count, -(-columns // _COLUMNS_A_BLOCK)), (count, columns), scalars)
