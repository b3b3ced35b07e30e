"""Attention of prefill chunks: every sequence of a batch with more than one query, over the paged cache.

Two families of kernels compute the same: one for any GPU from sm_80 on, one with Hopper's tensor cores and
copy engine. The host splits a batch into work tiles once (:mod:`.prefill_plan`), all layers use them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.memory.buffers.attention import PREFILL, PrefillTile, prefill_partials, work_tiles
from wisp_plan.memory.buffers.buffer import numbered
from wisp_runtime.batch import Array, Batch, StepKind
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.attention import prefill_plan
from wisp_runtime.ops.cuda.attention.prefill_plan import (
    OP,
    PORTABLE,
    WGMMA,
    Chunk,
    Tiling,
    Variant,
    select_variant,
)
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu, tensor_map_2d

_NO_WINDOW = 1 << 30
_VEC_BYTES = 16  # width of an access: rows begin at multiples of it
_PANEL = 64  # columns of a box of the copy engine


class Arguments(ctypes.Structure):
    """``PrefillArguments`` of ``kernels/include/attention/prefill_work_tile.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "out", "keys", "values", "block_tables")),
        *((name, ctypes.c_void_p) for name in ("work_tiles", "partials", "arrivals", "sinks")),
        *((name, ctypes.c_longlong) for name in ("q_stride", "out_stride")),
        *((name, ctypes.c_int) for name in ("work_count", "kv_heads", "group", "head_size")),
        *((name, ctypes.c_int) for name in ("block_tokens", "table_width")),
        *((name, ctypes.c_uint) for name in ("group_reciprocal", "block_reciprocal")),
        ("window", ctypes.c_int),
        ("log2_scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class PlannedChunks:
    """Chunks whose work tiles are on the device: a kernel, and its arguments but for a layer's arrays."""

    variant: Variant
    rows: int
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class _PlannedBatch:
    """The last batch of a kind of layers; no chunks: no sequence has more than one query."""

    batch: Batch
    shapes: tuple[object, ...]
    chunks: PlannedChunks | None


def chunks_of_batch(batch: Batch) -> list[Chunk]:
    """Return the chunks that prefill kernels compute: those of several queries, or all in a prefill step."""
    min_queries = 1 if batch.kind is StepKind.PREFILL else 2
    return prefill_plan.chunks_of(batch.query_starts_host, batch.context_lengths_host, min_queries)


class PrefillAttention:
    """Prefill attention on one GPU.

    Args:
        device: the GPU.
        variants: the kernels to choose among; None takes Hopper's there, else the portable ones.
        name: prefix of the buffers' names; two instances at a time need two.
    """

    def __init__(
        self, device: Gpu, variants: Sequence[Variant] | None = None, *, name: str = PREFILL
    ) -> None:
        self._device = device
        self._variants = variants or (WGMMA if device.arch.startswith("sm_90") else PORTABLE)
        self._name = name
        self._splits = True
        self._planned: dict[object, _PlannedBatch] = {}
        self._maps: dict[tuple[object, ...], tuple[Any, Any]] = {}

    def set_batch_invariant(self) -> None:
        """Compute tiles of one size, each over all of its KV tiles in order, whatever the batch."""
        self._splits = False

    @property
    def tiles(self) -> tuple[PrefillTile, ...]:
        """Return the largest tile of each head size, ascending: buffers are declared by them."""
        return prefill_plan.largest_tiles(self._variants, self._device.shared_bytes)

    def __call__(
        self,
        q: Array,
        keys: Array,
        values: Array,
        batch: Batch,
        *,
        scale: float,
        window: int | None,
        out: Array,
        sinks: Array | None = None,
    ) -> None:
        """Let every chunk attend to its sequence's cache; other rows of ``out`` stay as they are.

        Arguments are those of :meth:`.protocol.attention.AttentionOps.paged_attention`, of which

        Args:
            q: bf16, rows apart by a multiple of 16 bytes.
            keys, values: bf16, contiguous.
            batch: the same object for all layers of a kind in a step. Its tables are on the device.
            scale: above 0.
            out: ``[N, Hq * Dh]`` bf16, rows apart by a multiple of 16 bytes.
            sinks: ``[Hq]`` float32, one more logit of each head, without a value; None: there are none.

        Raises:
            ShapeError: an array differs from the above, or Dh is over 256.
        """
        kind = prefill_plan.kind_of(q, keys, window)
        planned = self._planned.get(kind)
        shapes = (q.shape, q.strides, keys.shape, values.shape, out.shape, out.strides)
        if planned is None or planned.batch is not batch or planned.shapes != shapes:
            name = numbered(self._name, prefill_plan.place(self._planned, kind))
            rounds = [chunks] if (chunks := chunks_of_batch(batch)) else []
            made = self.plan(q, keys, values, rounds, batch.block_tables, window, out, name)
            planned = self._planned[kind] = _PlannedBatch(batch, shapes, made[0] if made else None)
        if planned.chunks is not None:
            self.run(planned.chunks, q, keys, values, scale=scale, out=out, sinks=sinks)

    def plan(
        self,
        q: Array,
        keys: Array,
        values: Array,
        rounds: Sequence[Sequence[Chunk]],
        tables: Array,
        window: int | None,
        out: Array,
        name: str,
    ) -> list[PlannedChunks]:
        """Check the arrays, split each of ``rounds`` into work tiles, and copy all of these to the device.

        The tiles serve until the next call with the same ``name``.

        Args:
            rounds: chunks that are computed at a time; each its own launch of :meth:`run`.
            tables: block tables on the device; a chunk's ``sequence`` is its row.
            q, keys, values, window, out: arrays and window of a call, whose shapes count.
            name: prefix of the name of the work tiles' buffer.

        Raises:
            ShapeError: see :meth:`__call__`.
        """
        _check(q, keys, values, tables, out)
        variant = select_variant(self._variants, q.shape[2], self._device.shared_bytes)
        visible = min(window or _NO_WINDOW, _NO_WINDOW)
        split = [self._split(chunks, variant, q, keys, visible) for chunks in rounds]
        if not split:
            return []
        tiles = self._device.workspace.view(work_tiles(sum(len(host) for _, host in split), name))
        self._device.uploads.upload(tiles, np.concatenate([host for _, host in split]))
        planned, first = list[PlannedChunks](), 0
        for rows, host in split:
            of_round = tiles[first : first + len(host)]
            arguments = self._arguments(of_round, variant, q, keys, tables, visible, out)
            planned.append(PlannedChunks(variant, rows, arguments))
            first += len(host)
        return planned

    def _split(
        self, chunks: Sequence[Chunk], variant: Variant, q: Array, keys: Array, window: int
    ) -> tuple[int, prefill_plan.WorkTiles]:
        """Return the rows of a tile, and the work tiles of ``chunks``."""
        kv_heads = keys.shape[1]
        sizes = {"group": q.shape[1] // kv_heads, "kv_heads": kv_heads, "sm_count": self._device.sm_count}
        rows = variant.rows[-1]
        if self._splits:
            rows = prefill_plan.rows_of_tile(chunks, sizes["group"], variant.rows)
        tiling = Tiling(rows, variant.tokens)
        return rows, prefill_plan.plan(chunks, tiling, window=window, splits=self._splits, **sizes)

    def _arguments(
        self, tiles: Array, variant: Variant, q: Array, keys: Array, tables: Array, window: int, out: Array
    ) -> Arguments:
        (_, heads, head_size), (_, kv_heads, block_tokens, _) = q.shape, keys.shape
        partials, arrivals = self._partials(variant)
        return Arguments(
            block_tables=tables.data.ptr,
            work_tiles=tiles.data.ptr,
            partials=partials.data.ptr,
            arrivals=arrivals.data.ptr,
            q_stride=q.strides[0] // BF16.itemsize,
            out_stride=out.strides[0] // BF16.itemsize,
            work_count=len(tiles) * kv_heads,
            kv_heads=kv_heads,
            group=heads // kv_heads,
            head_size=head_size,
            block_tokens=block_tokens,
            table_width=tables.strides[0] // tables.itemsize,
            group_reciprocal=_reciprocal(heads // kv_heads),
            block_reciprocal=_reciprocal(block_tokens),
            window=window,
        )

    def run(
        self,
        planned: PlannedChunks,
        q: Array,
        keys: Array,
        values: Array,
        *,
        scale: float,
        out: Array,
        sinks: Array | None = None,
    ) -> None:
        """Let the chunks of :meth:`plan` attend to one layer's cache; arrays of the shapes given there."""
        arguments, variant, rows = planned.arguments, planned.variant, planned.rows
        arguments.q, arguments.out = q.data.ptr, out.data.ptr
        arguments.keys, arguments.values = keys.data.ptr, values.data.ptr
        arguments.sinks = None if sinks is None else sinks.data.ptr
        arguments.log2_scale = scale * math.log2(math.e)
        if (q.data.ptr | out.data.ptr | keys.data.ptr | values.data.ptr) % _VEC_BYTES:
            raise ShapeError("q, out, keys and values must start at multiples of 16 bytes")
        kernel = self._device.kernels.get(OP, variant.entry(rows))
        block, shared_bytes = variant.threads(rows), variant.shared_bytes(rows)
        if variant.uses_wgmma:
            unit = math.gcd(arguments.block_tokens, variant.tokens)
            maps = self._tensor_maps(keys, values, unit)
            grid = (min(arguments.work_count, self._device.sm_count),)
            kernel.launch(grid, block, arguments, *maps, np.int32(unit), shared_bytes=shared_bytes)
        else:
            kernel.launch((arguments.work_count,), block, arguments, shared_bytes=shared_bytes)

    def _tensor_maps(self, keys: Array, values: Array, unit: int) -> tuple[Any, Any]:
        """Return the maps of one layer's cache as rows of Dh, made at its first use."""
        key = (keys.data.ptr, values.data.ptr, keys.shape, unit)
        if key not in self._maps:
            rows = [cache.reshape(-1, cache.shape[-1]) for cache in (keys, values)]
            self._maps[key] = (tensor_map_2d(rows[0], unit, _PANEL), tensor_map_2d(rows[1], unit, _PANEL))
        return self._maps[key]

    def _partials(self, variant: Variant) -> tuple[Array, Array]:
        """Return the partial results of split tiles, at most one an SM, and their arrival counters."""
        elements = max(variant.rows) * (variant.head_size + 2)
        partials, arrivals = prefill_partials(elements, self._device.sm_count, self._name)
        return self._device.workspace.view(partials), self._device.workspace.view(arrivals)


def _reciprocal(divisor: int) -> int:
    """Return ``ceil(2^32 / divisor)``, 0 for 1, for ``divide`` of ``prefill_work_tile.cuh``."""
    return -(-(1 << 32) // divisor) % (1 << 32)


def _check(q: Array, keys: Array, values: Array, tables: Array, out: Array) -> None:
    """Require what the kernels assume; the batch itself is checked where it is made."""
    if q.ndim != 3 or keys.ndim != 4 or keys.shape != values.shape or keys.shape[3] != q.shape[2]:
        raise ShapeError(
            f"q is {list(q.shape)}, keys {list(keys.shape)}, values {list(values.shape)}; "
            "must be [N, Hq, Dh], [P, Hkv, Tb, Dh] twice"
        )
    tokens, heads, size = q.shape
    if heads % keys.shape[1] or size % 8 or keys.shape[2] % 8:
        raise ShapeError(
            f"{heads} query heads, {keys.shape[1]} KV heads of {size}, blocks of {keys.shape[2]} tokens: "
            "query heads must be a multiple of KV heads, head size and block tokens of 8"
        )
    if out.shape != (tokens, heads * size):
        raise ShapeError(f"out is {list(out.shape)}, must be {[tokens, heads * size]}")
    if any(array.dtype != BF16 for array in (q, keys, values, out)) or tables.dtype != np.int32:
        raise ShapeError("q, keys, values and out must be bf16, the block tables int32")
    if not keys.flags.c_contiguous or not values.flags.c_contiguous:
        raise ShapeError("one layer's keys and values must be contiguous")
    dense = BF16.itemsize, size * BF16.itemsize
    if (
        q.strides[:0:-1] != dense
        or out.strides[1] != dense[0]
        or (q.strides[0] | out.strides[0]) % _VEC_BYTES
    ):
        raise ShapeError(
            f"rows of q ({q.strides}) and out ({out.strides}) must be dense, and 16 bytes aligned"
        )
