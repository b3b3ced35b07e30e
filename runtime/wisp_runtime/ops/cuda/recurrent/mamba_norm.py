"""Gate and norm of a Mamba-2's result on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_apart, require_true, row_count
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.recurrent.conv import check_rows
from wisp_runtime.ops.cuda.recurrent.mamba_arguments import NormShape, norm_threads

_OP = "mamba_norm"
_MAX_GROUP = 16384
_SHARED_BYTES = 128  # a float a warp


@dataclass(frozen=True, slots=True)
class _Plan:
    grid: tuple[int, int]
    threads: int
    shape: NormShape
    out_shape: tuple[int, int]


class MambaNorm:
    """Gate and norm rows.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernel = device.kernels.get(_OP)
        self._workspace = device.workspace
        self._plans: dict[object, _Plan] = {}

    def __call__(
        self, y: Array, z: Array, weight: Array | None, spec: MambaSpec, rows: Array | None, *, out_name: str
    ) -> Array:
        """Gate ``y`` by z and norm it, in the order of ``spec.gating``, of the given rows.

        Args:
            y: ``[N, H Dh]`` bf16, contiguous.
            z: ``[N, H Dh]`` bf16, without its factor; rows apart by a multiple of 8 elements.
            weight: ``[H Dh]`` float32, or None where there is no norm.
            spec: groups, order and factors.
            rows: ``[R]`` int64, inside of ``y``; None: all, R = N.
            out_name: buffer of the workspace that takes the result.

        Returns:
            ``[R, H Dh]`` bf16.

        Raises:
            ShapeError: an array differs from the above.
        """
        key = y.shape, z.strides, weight is None, None if rows is None else rows.shape, spec
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, _plan(y, z, weight, spec, rows))
        out = self._workspace.array(out_name, plan.out_shape, BF16)
        require_apart(_OP, out_name, out, y=y)
        if plan.grid[0]:
            arrays = y, z, weight, rows, out
            self._kernel.launch(plan.grid, plan.threads, *arrays, plan.shape, shared_bytes=_SHARED_BYTES)
        return out


def _plan(y: Array, z: Array, weight: Array | None, spec: MambaSpec, rows: Array | None) -> _Plan:
    count, width = len(y), spec.inner
    groups = 1 if weight is None else spec.groups
    group = width // groups
    fits = group % 8 == 0 and group <= _MAX_GROUP
    require_true(fits, f"{_OP}: groups of {group} channels, must be a multiple of 8 up to {_MAX_GROUP}")
    require(_OP, "y", y, (count, width), BF16)
    check_rows(_OP, "z", z, (count, width))
    if weight is not None:
        require(_OP, "weight", weight, (width,), np.float32)
    count = row_count(_OP, rows, count)
    order = int(spec.gating != "norm_then_gate")
    shape = NormShape(z.strides[0] // 2, width, group, order, spec.scales[0], spec.norm_eps)
    return _Plan((count, groups), norm_threads(group), shape, (count, width))
