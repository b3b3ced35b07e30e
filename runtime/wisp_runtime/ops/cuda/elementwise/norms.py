"""RMSNorm on the GPU, alone or fused with the residual sum before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_apart, require_true, row_count
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants

_MAX_THREADS = constants()["norm_threads"]
_ENTRIES = ((1, ""), (2, "_2"), (4, "_4"))  # chunks of 8 columns that a thread holds, and the kernels' names


@dataclass(frozen=True, slots=True)
class _Plan:
    kernel: Kernel
    rows: int
    threads: int
    columns: np.int32
    eps: np.float32
    offset: np.float32  # added to the weights


class Norms:
    """Normalise rows.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._workspace = device.workspace
        self._plans: dict[object, _Plan] = {}

    def rmsnorm(
        self, x: Array, weight: Array, *, eps: float, out_name: str, is_zero_centred: bool = False
    ) -> Array:
        """Scale rows of ``x`` by the inverse of their root mean square, then by ``weight``.

        Args:
            x: ``[N, D]`` float32, contiguous.
            weight: ``[D]`` bf16.
            eps: added to the mean square (no unit).
            out_name: buffer of the workspace that takes the result.
            is_zero_centred: whether the factor of a column is one more than its weight.

        Returns:
            ``[N, D]`` bf16.

        Raises:
            ShapeError: an array differs from the above, or D is no multiple of 8 up to 16,384.
        """
        key = x.shape, weight.shape, eps, is_zero_centred
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, self._plan("rmsnorm", x, weight, None, eps, is_zero_centred))
        y = self._workspace.array(out_name, (plan.rows, x.shape[1]), BF16)
        require_apart("rmsnorm", out_name, y, x=x)
        if plan.rows:
            scalars = plan.columns, plan.eps, plan.offset
            plan.kernel.launch((plan.rows,), plan.threads, x, weight, y, *scalars)
        return y

    def norm_in_place(self, x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
        """Norm ``x`` ``[N, D]`` bf16, contiguous, as :meth:`rmsnorm` does, in place; return it.

        Raises:
            ShapeError: an array differs from that.
        """
        key = x.shape, weight.shape, eps, is_zero_centred, BF16
        plan = self._plans.get(key)
        if plan is None:
            made = self._plan("rmsnorm", x, weight, None, eps, is_zero_centred, BF16)
            plan = remember(self._plans, key, made)
        if plan.rows:
            scalars = plan.columns, plan.eps, plan.offset
            plan.kernel.launch((plan.rows,), plan.threads, x, weight, x, *scalars)
        return x

    def add_rmsnorm(
        self,
        x: Array,
        residual: Array,
        weight: Array,
        *,
        eps: float,
        out_name: str,
        rows: Array | None = None,
        is_zero_centred: bool = False,
    ) -> Array:
        """Add ``x`` into ``residual`` in place, and return the norm of the sum.

        Args:
            x: ``[R, D]`` bf16, contiguous; row i is added into row ``rows[i]``.
            residual: ``[N, D]`` float32, contiguous.
            weight: ``[D]`` bf16.
            eps: added to the mean square (no unit).
            out_name: buffer of the workspace that takes the result.
            rows: ``[R]`` int64, rows of ``residual``, none twice; others stay as they are. None: all, R = N.
            is_zero_centred: whether the factor of a column is one more than its weight.

        Returns:
            ``[R, D]`` bf16.

        Raises:
            ShapeError: an array differs from the above, or D is no multiple of 8 up to 16,384.
        """
        chosen = None if rows is None else rows.shape
        key = residual.shape, weight.shape, chosen, eps, x.shape, is_zero_centred
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan("add_rmsnorm", residual, weight, rows, eps, is_zero_centred)
            require("add_rmsnorm", "x", x, (plan.rows, residual.shape[1]), BF16)
            remember(self._plans, key, plan)
        y = self._workspace.array(out_name, (plan.rows, residual.shape[1]), BF16)
        require_apart("add_rmsnorm", out_name, y, x=x, residual=residual)
        if plan.rows:
            scalars = plan.columns, plan.eps, plan.offset
            plan.kernel.launch((plan.rows,), plan.threads, x, residual, weight, rows, y, *scalars)
        return y

    def _plan(
        self,
        op: str,
        x: Array,
        weight: Array,
        rows: Array | None,
        eps: float,
        is_zero_centred: bool,
        dtype: Any = np.float32,
    ) -> _Plan:
        require_true(x.ndim == 2, f"{op}: the rows are {list(x.shape)}, must be [N, D]")
        columns = x.shape[1]
        chunks = columns // 8
        fits = columns % 8 == 0 and 0 < chunks <= _ENTRIES[-1][0] * _MAX_THREADS
        require_true(fits, f"{op}: D is {columns}, must be a multiple of 8 up to 16384")
        require(op, "the rows", x, x.shape, dtype)
        require(op, "weight", weight, (columns,), BF16)
        tokens = row_count(op, rows, len(x))
        count, suffix = next(entry for entry in _ENTRIES if chunks <= entry[0] * _MAX_THREADS)
        threads = -(-chunks // (32 * count)) * 32
        name = f"{op}_bf16" if dtype == BF16 else op
        kernel = self._device.kernels.get(op, name + suffix)
        scalars = np.int32(columns), np.float32(eps), np.float32(is_zero_centred)
        return _Plan(kernel, tokens, threads, *scalars)
