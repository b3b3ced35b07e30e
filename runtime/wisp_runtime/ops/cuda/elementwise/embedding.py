"""The embedding on the GPU: rows of the table, chosen by tokens that the host need not have yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix

_THREADS = constants()["row_threads"]
_COLUMNS_A_BLOCK = 8 * _THREADS


@dataclass(frozen=True, slots=True)
class _Plan:
    grid: tuple[int, int]
    sampled: np.int32
    vocab: np.int32
    columns: np.int32


class Embedding:
    """Look tokens up.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernel = device.kernels.get("embedding")
        self._workspace = device.workspace
        self._plans: dict[object, _Plan] = {}

    def __call__(self, tokens: Array, table: PackedMatrix, sampled: Array | None, *, out_name: str) -> Array:
        """Return row ``tokens[n]`` of ``table`` for each n.

        Args:
            tokens: ``[N]`` int32. A negative t means token ``sampled[-1 - t]`` of the step before, so that
                the host can launch a step before it has its tokens.
            table: ``[V, D]``; a token outside of it reads its first or last row.
            sampled: ``[M]`` int32, or None where no token is negative.
            out_name: buffer of the workspace that takes the result.

        Returns:
            ``[N, D]`` float32.

        Raises:
            ShapeError: an array differs from the above.
        """
        key = tokens.shape, table.outputs, table.inputs, None if sampled is None else sampled.shape
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, _plan(tokens, table, sampled))
        out = self._workspace.array(out_name, (plan.grid[0], table.inputs), np.float32)
        self._kernel.launch(
            plan.grid, _THREADS, tokens, sampled, table.storage, out, plan.sampled, plan.vocab, plan.columns
        )
        return out


def _plan(tokens: Array, table: PackedMatrix, sampled: Array | None) -> _Plan:
    columns, storage, sampled_rows = table.inputs, table.storage, 0 if sampled is None else len(sampled)
    require("embedding", "tokens", tokens, (tokens.size,), np.int32)
    if sampled is not None:
        require("embedding", "sampled", sampled, (sampled.size,), np.int32)
    require_true(len(tokens) > 0, "embedding: no tokens; a step has at least one")
    require_true(columns % 8 == 0, f"embedding: D is {columns}, must be a multiple of 8")
    require_true(
        table.permutation == "plain", f"embedding: the table's rows are {table.permutation}, must be plain"
    )
    require_true(storage.dtype == BF16, f"embedding: the table is {storage.dtype}, must be {BF16}")
    require_aligned("embedding", "table", storage)
    grid = len(tokens), -(-columns // _COLUMNS_A_BLOCK)
    return _Plan(grid, np.int32(sampled_rows), np.int32(table.outputs), np.int32(columns))
