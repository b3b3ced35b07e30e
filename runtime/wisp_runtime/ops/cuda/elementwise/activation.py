"""Activations of MLPs on the GPU that no GEMM applies itself."""

from __future__ import annotations

from typing import Literal

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants

_OP = "activate"
_THREADS = constants()["row_threads"]

Function = Literal["gelu", "silu", "relu2"]


class Activate:
    """Apply an activation to the result of a projection.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace

    def __call__(self, x: Array, function: Function, scale: float = 1.0, *, out_name: str) -> Array:
        """Return ``gelu(gate) * up`` or ``silu(scale * gate) * up``, or in place ``max(x, 0) ** 2``.

        Args:
            x: ``[N, 2 F]`` bf16, gate and up interleaved by eights; of ``relu2`` ``[N, F]``.
            function: entry of the kernel.
            scale: factor of the gate of ``silu``.
            out_name: buffer of the workspace that takes the result; of ``relu2`` it has x.

        Returns:
            ``[N, F]`` bf16.

        Raises:
            ShapeError: an array differs from the above, or F is no multiple of 8.
        """
        tokens, columns = x.shape
        columns = columns if function == "relu2" else columns // 2
        require(_OP, "x", x, x.shape, BF16)
        fits = columns > 0 and columns % 8 == 0 and x.shape[1] in (columns, 2 * columns)
        require_true(fits, f"{_OP}: F is {columns} of {x.shape[1]} columns, must be a multiple of 8")
        out = self._workspace.array(out_name, (tokens, columns), BF16)
        if (out.data.ptr == x.data.ptr) != (function == "relu2"):
            raise ShapeError(f"{_OP}: x must be in {out_name} of relu2, and elsewhere of {function}")
        if tokens:
            grid = tokens, -(-columns // (8 * _THREADS))
            kernel = self._kernels.get(_OP, f"{_OP}_{function}")
            kernel.launch(grid, _THREADS, x, out, np.int32(columns), np.float32(scale))
        return out
