"""Weighted sums of experts' results on the GPU, alone or fused with the norm that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.moe.arguments import NormArguments, SumArguments
from wisp_runtime.ops.protocol.moe import ExpertResults

_CONSTANTS = constants()
_ROW_THREADS, _NORM_THREADS = _CONSTANTS["row_threads"], _CONSTANTS["norm_threads"]
_ENTRIES = ((1, ""), (2, "_2"), (4, "_4"))  # chunks of 8 columns that a thread holds, and the kernels' names
_OP = "combine_rmsnorm"


class Combination:
    """Add up results.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace
        self._entries: dict[Any, tuple[str, int]] = {}

    def __call__(self, results: ExpertResults) -> Array:
        """Return the sums, ``[N, D]`` bf16."""
        tokens, columns = len(results.positions), results.y.shape[1]
        out = self._workspace.array("mixture", (tokens, columns), BF16)
        grid = tokens, -(-columns // (8 * _ROW_THREADS))
        self._kernels.get("combine_experts").launch(grid, _ROW_THREADS, _summed(results), out)
        return out

    def add_rmsnorm(
        self,
        results: ExpertResults,
        residual: Array,
        weight: Array,
        *,
        eps: float,
        out_name: str,
        rows: Array | None = None,
        is_zero_centred: bool = False,
    ) -> Array:
        """Add the sums into ``residual``; see :meth:`.norms.Norms.add_rmsnorm`, with whose bits it is.

        Raises:
            ShapeError: an array does not fit.
        """
        tokens = len(results.positions)
        key = tokens, results.y.shape, residual.shape, weight.shape, None if rows is None else rows.shape
        known = self._entries.get(key)
        if known is None:
            _check(results, residual, weight, rows)
            known = remember(self._entries, key, _entry(residual.shape[1]))
        entry, threads = known
        out = self._workspace.array(out_name, (tokens, residual.shape[1]), BF16)
        pointers = (None if array is None else array.data.ptr for array in (residual, weight, rows, out))
        norm = NormArguments(*pointers, eps, float(is_zero_centred))
        kernel = self._kernels.get(_OP, entry)
        kernel.launch((tokens,), threads, _summed(results), norm, shared_bytes=32 * 4)
        return out


def _summed(results: ExpertResults) -> SumArguments:
    routing = results.routing
    arrays = results.y, results.positions, routing.weights, results.added, routing.shared_logits
    pointers = (None if array is None else array.data.ptr for array in arrays)
    return SumArguments(*pointers, results.y.shape[1], results.positions.shape[1])


def _entry(columns: int) -> tuple[str, int]:
    """Return the kernel for rows of so many columns, and its threads."""
    chunks = columns // 8
    count, suffix = next(entry for entry in _ENTRIES if chunks <= entry[0] * _NORM_THREADS)
    return _OP + suffix, -(-chunks // (32 * count)) * 32


def _check(results: ExpertResults, residual: Array, weight: Array, rows: Array | None) -> None:
    tokens, columns = len(results.positions), results.y.shape[1]
    fits = columns % 8 == 0 and 0 < columns // 8 <= _ENTRIES[-1][0] * _NORM_THREADS
    require_true(fits, f"{_OP}: D is {columns}, must be a multiple of 8 up to 16384")
    require(_OP, "residual", residual, (len(residual) if rows is not None else tokens, columns), np.float32)
    require(_OP, "weight", weight, (columns,), BF16)
    if rows is not None:
        require(_OP, "rows", rows, (tokens,), np.int64)
