"""Order of a mixture's pairs of a token and an expert: by expert, in tiles of one expert each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.hardware.kernel_limits import MAX_EXPERTS
from wisp_plan.memory.buffers.moe import max_tiles
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.checks import remember, require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.device.workspace import Workspace
from wisp_runtime.ops.cuda.moe.arguments import SortArguments
from wisp_runtime.ops.cuda.moe.plan import Tile, mma_tile, sort_shared_bytes

_THREADS = constants()["sort_threads"]
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_OP = "sort_pairs"


@dataclass(frozen=True, slots=True)
class SortedPairs:
    """Pairs sorted by expert.

    Attributes:
        experts: ``[N, K]`` int32, which were sorted.
        positions: ``[N, K]`` int32: position of each pair.
        rows: ``[N K]`` int32: token at each position; with the shared expert ``[N (K + 1)]``.
        tiles: ``[max_tiles, 4]`` int32, of :attr:`tile_count`: expert, first position, last + 1.
        tile_count: ``[1]`` int32.
        tile: tile of the GEMMs.
        has_shared: whether expert E, the shared one, has N more positions behind all pairs.
    """

    experts: Array
    positions: Array
    rows: Array
    tiles: Array
    tile_count: Array
    tile: Tile
    has_shared: bool = False

    def point(self, arguments: SortArguments, counts: Array | None) -> None:
        """Point a kernel's arguments to the lists, and to the counters ``[2, E]`` of each expert's load."""
        arguments.experts, arguments.positions = self.experts.data.ptr, self.positions.data.ptr
        arguments.rows, arguments.tiles = self.rows.data.ptr, self.tiles.data.ptr
        arguments.tile_count = self.tile_count.data.ptr
        if counts is not None:
            arguments.loads, arguments.calls = counts.data.ptr, counts.data.ptr + counts.strides[0]


def sorted_pairs(
    workspace: Workspace, experts: Array, count: int, tile: Tile, *, has_shared: bool = False
) -> SortedPairs:
    """Return the lists of ``experts`` ``[N, K]``, each of ``count``, for a kernel to write."""
    tokens, array = len(experts), workspace.array
    tiles = max_tiles(experts.size, count, tile.width) + (-(-tokens // tile.width) if has_shared else 0)
    return SortedPairs(
        experts,
        array("moe.positions", experts.shape, _INT32),
        array("moe.rows", (experts.size + (tokens if has_shared else 0),), _INT32),
        array("moe.tiles", (tiles, 4), _INT32),
        array("moe.tile_count", (1,), _INT32),
        tile,
        has_shared,
    )


class PairSorter:
    """Sort pairs.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernel, self._workspace = device.kernels.get("sort_pairs"), device.workspace
        self._plans: dict[Any, SortArguments] = {}

    def __call__(
        self, experts: Array, count: int, counts: Array | None = None, tile: Tile | None = None
    ) -> SortedPairs:
        """Sort the pairs of ``experts`` ``[N, K]`` int32, N > 0, each of ``count`` experts.

        Args:
            counts: ``[2, E]`` int64 to which each expert's pairs, and 1 where there are any, are added.
            tile: tile of the GEMMs; None: that of the portable kernels.

        Raises:
            ShapeError: an array differs from the above.
        """
        tile = tile or mma_tile(experts.size, count)
        key = experts.shape, count, counts is None, tile
        arguments = self._plans.get(key)
        if arguments is None:
            _check(experts, count, counts)
            sizes = experts.size, experts.shape[1], tile.width
            arguments = remember(self._plans, key, SortArguments(0, 0, 0, 0, 0, 0, 0, *sizes))
        ordered = sorted_pairs(self._workspace, experts, count, tile)
        ordered.point(arguments, counts)
        self._kernel.launch((count,), _THREADS, arguments, shared_bytes=sort_shared_bytes(count))
        return ordered


def _check(experts: Array, count: int, counts: Array | None) -> None:
    require_true(count <= MAX_EXPERTS, f"{_OP}: {count} experts, {MAX_EXPERTS} at most")
    require(_OP, "experts", experts, (len(experts), experts.size // len(experts)), _INT32)
    check_counts(counts, count)


def check_counts(counts: Array | None, count: int) -> None:
    """Require counters of ``count`` experts' load, if there are any.

    Raises:
        ShapeError: they have another shape or dtype.
    """
    if counts is not None:
        is_dense = counts.dtype == _INT64 and counts.strides[1] == _INT64.itemsize
        found = f"{list(counts.shape)} {counts.dtype}"
        fits = is_dense and counts.shape == (2, count)
        require_true(fits, f"{_OP}: counts are {found}, must be [2, {count}] int64")
