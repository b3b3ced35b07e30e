"""Gate of a shared expert on the GPU: rows times the sigmoid of a logit each."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants

_THREADS = constants()["row_threads"]
_ENTRIES = {BF16: "scale_rows", np.dtype(np.float32): "scale_rows_f32"}


class ScaleRows:
    """Scale rows.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace

    def __call__(self, x: Array, logits: Array, *, out_name: str) -> Array:
        """Return ``x * sigmoid(logits)``: ``[N, D]`` bf16 by ``[N, 1]`` bf16 or float32.

        Raises:
            ShapeError: an array differs from the above, or D is no multiple of 8.
        """
        tokens, columns = x.shape
        require("scale_rows", "x", x, x.shape, BF16)
        dtype = logits.dtype if logits.dtype in _ENTRIES else BF16
        require("scale_rows", "logits", logits, (tokens, 1), dtype)
        require_true(columns % 8 == 0, f"scale_rows: x has {columns} columns, must be a multiple of 8")
        out = self._workspace.array(out_name, x.shape, BF16)
        if tokens:
            grid = tokens, -(-columns // (8 * _THREADS))
            kernel = self._kernels.get("scale_rows", _ENTRIES[dtype])
            kernel.launch(grid, _THREADS, x, logits, out, np.int32(columns))
        return out
