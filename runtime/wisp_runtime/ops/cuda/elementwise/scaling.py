"""Scaling on the GPU, in place, and sums of scaled rows."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_true, row_count
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants

_THREADS = constants()["row_threads"]
_ELEMENTS_A_BLOCK = 8 * _THREADS
_FLOAT32 = np.dtype(np.float32)
_SCALE = {BF16: "scale_bf16", _FLOAT32: "scale_f32"}
_ADD = {BF16: "add_scaled_bf16", _FLOAT32: "add_scaled"}


class Scale:
    """Scale arrays.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels = device.kernels

    def __call__(self, x: Array, factor: float) -> Array:
        """Multiply ``x``, bf16 or float32 and contiguous, by ``factor`` in place; return it.

        Raises:
            ShapeError: ``x`` differs from the above.
        """
        require("scale", "x", x, x.shape, x.dtype if x.dtype in _SCALE else BF16)
        if x.size:
            kernel = self._kernels.get("scale", _SCALE[x.dtype])
            grid = (-(-x.size // _ELEMENTS_A_BLOCK),)
            kernel.launch(grid, _THREADS, x, np.int64(x.size), np.float32(factor))
        return x


class AddScaled:
    """Add scaled rows.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels = device.kernels

    def __call__(self, x: Array, residual: Array, factor: float, rows: Array | None = None) -> None:
        """Add ``factor * x`` into ``residual`` in place.

        Args:
            x: ``[R, D]`` bf16, contiguous; row i is added into row ``rows[i]``.
            residual: ``[N, D]`` float32 or bf16, contiguous.
            factor: factor of x.
            rows: ``[R]`` int64, rows of ``residual``, none twice. None: all, R = N.

        Raises:
            ShapeError: an array differs from the above, or D is no multiple of 8.
        """
        op = "add_scaled"
        require_true(residual.ndim == 2, f"{op}: residual is {list(residual.shape)}, must be [N, D]")
        count, columns = residual.shape
        require_true(columns % 8 == 0, f"{op}: D is {columns}, must be a multiple of 8")
        require(op, "residual", residual, residual.shape, residual.dtype if residual.dtype in _ADD else BF16)
        count = row_count(op, rows, count)
        require(op, "x", x, (count, columns), BF16)
        if x.data.ptr == residual.data.ptr:
            raise ShapeError(f"{op}: x is residual, must be another array")
        if count:
            kernel = self._kernels.get(op, _ADD[residual.dtype])
            grid = count, -(-columns // _ELEMENTS_A_BLOCK)
            kernel.launch(grid, _THREADS, x, residual, rows, np.int32(columns), np.float32(factor))
