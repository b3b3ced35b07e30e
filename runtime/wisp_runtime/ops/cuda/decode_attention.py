"""Attention of decode tokens on the GPU: one query a sequence, K and V read once, where they lie.

A sequence's tokens are split over several thread blocks where that is what it takes to fill the GPU. The grid
follows from the batch's size and the model alone, and the device looks the contexts up: one CUDA graph serves
all lengths.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.arrays import BF16
from wisp_runtime.ops.cuda.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device import Device
from wisp_runtime.ops.cuda.kernels import Kernel

_OP = "decode_attention"
_SIZES = (64, 80, 96, 128, 192, 256)  # head sizes that kernels exist for; others take the next larger one
_OCTET, _WIDEST_GROUP = 8, 16
_TILE_TOKENS = 16
_STAGES = 2
_PART_TOKENS = 64  # kPartTiles and kLongPartTiles of the kernel, in tokens
_LONG_PART_TOKENS = 4096
_BLOCKS_PER_SM = 2
_MOST_SPLITS = 32  # to fill the GPU: joining more costs more than it gains
_MOST_BLOCKS = 4096  # of a grid that is split: blocks without work cost a few nanoseconds each
_MOST_PART_ROWS = 16384


class _Shape(ctypes.Structure):
    """``Shape`` of decode_attention.cuh."""

    _fields_ = (
        ("q_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("kv_heads", "group", "head_size", "block_tokens")),
        ("table_width", ctypes.c_int32),
        ("reciprocal", ctypes.c_uint32),
        ("filling", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int
    shape: _Shape
    part_rows: int


class DecodeAttention:
    """Attend with one query a sequence.

    Args:
        device: where.
        blocks_per_sm: thread blocks a multiprocessor that splitting aims at.
    """

    def __init__(self, device: Device, *, blocks_per_sm: int = _BLOCKS_PER_SM) -> None:
        self._device = device
        self._wanted_blocks = blocks_per_sm * device.sms
        self._plans: dict[object, _Plan] = {}

    def reserve(self, max_batch: int, query_heads: int, head_size: int) -> None:
        """Allocate what sequences that are split need, for batches of up to ``max_batch`` sequences."""
        self._parts(_MOST_PART_ROWS, head_size)
        self._arrived(max_batch, query_heads)

    def __call__(
        self,
        q: Array,
        keys: Array,
        values: Array,
        batch: Batch,
        *,
        scale: float,
        window: int | None,
        max_context: int,
        out: Array,
    ) -> None:
        """Write the attention of each sequence with one query token to its row of ``out``.

        Sequences with several queries, or without context, are skipped: their rows stay as they are.

        Args:
            q: ``[N, Hq, Dh]`` bf16, heads contiguous, rows apart by a multiple of 8 elements. Hq is a
                multiple of Hkv, at most 16 times it; Dh a multiple of 8 up to 256.
            keys, values: ``[P, Hkv, Tb, Dh]`` bf16; Tb a multiple of 8.
            batch: ``query_starts``, ``context_lengths`` and ``block_tables`` are read, on the device only.
            scale: multiplies the scores.
            window: tokens that a query sees, its own included; None means all.
            max_context: no sequence of a batch of this size is longer (tokens); it decides the grid alone.
            out: ``[N, Hq * Dh]`` bf16, contiguous.

        Raises:
            ShapeError: an array differs from the above.
        """
        tables = batch.block_tables
        key = q.shape, q.strides, keys.shape, tables.shape, out.shape, scale, window, max_context
        plan = self._plans.get(key)
        if plan is None:
            _check(q, keys, values, batch, window, out)
            plan = remember(self._plans, key, self._plan(q, keys, tables, scale, window, max_context))
        parts = stats = arrived = None
        if plan.part_rows:
            parts, stats = self._parts(plan.part_rows, q.shape[2])
            arrived = self._arrived(plan.grid[2], q.shape[1])
        arrays = (
            q,
            keys,
            values,
            batch.query_starts,
            batch.context_lengths,
            tables,
            out,
            parts,
            stats,
            arrived,
        )
        plan.kernel.launch(plan.grid, plan.block, *arrays, plan.shape, shared_bytes=plan.shared_bytes)

    def _parts(self, rows: int, head_size: int) -> tuple[Array, Array]:
        array = self._device.workspace.array
        return (
            array(f"{_OP}.parts", (rows, head_size), np.float32),
            array(f"{_OP}.stats", (rows, 2), np.float32),
        )

    def _arrived(self, batch: int, query_heads: int) -> Array:
        return self._device.workspace.zeroed(f"{_OP}.arrived", (batch * query_heads,), np.uint32)

    def _plan(
        self, q: Array, keys: Array, tables: Array, scale: float, window: int | None, max_context: int
    ) -> _Plan:
        (_, kv_heads, block_tokens, size), (batch, width) = keys.shape, tables.shape
        group = q.shape[1] // kv_heads
        seen = max_context if window is None else min(max_context, window)
        filling, splits = split(batch, kv_heads, group, seen, self._wanted_blocks)
        entry = next(known for known in _SIZES if size <= known)
        name = f"{_OP}_{entry}" + ("_wide" if group > _OCTET else "")
        warps = 4 if entry <= 128 else 2
        shape = _Shape(
            *(q.strides[0] // 2, kv_heads, group, size, block_tokens, width),
            *(-(-(2**32) // block_tokens), filling, window or 0, scale * math.log2(math.e)),
        )
        return _Plan(
            self._device.kernels.get(_OP, name),
            (splits, kv_heads, batch),
            32 * warps,
            shared_bytes=warps * _STAGES * 2 * _TILE_TOKENS * 2 * (entry + 8),
            shape=shape,
            part_rows=batch * kv_heads * group * splits if splits > 1 else 0,
        )


def split(batch: int, kv_heads: int, group: int, context: int, wanted_blocks: int) -> tuple[int, int]:
    """Decide how far sequences may be split.

    A sequence whose query sees ``c`` tokens is split into ``min(filling, ceil(c / 64))`` parts, or
    ``ceil(c / 4096)`` if those are more, but at most ``splits``; the kernel computes that.

    Args:
        batch: B, sequences.
        kv_heads: Hkv.
        group: Hq / Hkv.
        context: the most tokens that a query may see.
        wanted_blocks: thread blocks that fill the GPU.

    Returns:
        ``(filling, splits)``: parts that fill the GPU when every sequence is there, and the grid's width.
    """
    pairs = batch * kv_heads
    filling = max(1, min(wanted_blocks // pairs, _MOST_SPLITS, -(-context // _PART_TOKENS)))
    room = min(_MOST_BLOCKS // pairs, _MOST_PART_ROWS // (pairs * group))
    splits = max(1, min(max(filling, -(-context // _LONG_PART_TOKENS)), room))
    return min(filling, splits), splits


def _check(q: Array, keys: Array, values: Array, batch: Batch, window: int | None, out: Array) -> None:
    shapes = f"q is {list(q.shape)}, keys is {list(keys.shape)}"
    ranks = (q.ndim, keys.ndim, batch.block_tables.ndim) == (3, 4, 2)
    require_true(ranks, f"{_OP}: {shapes}, must be [N, Hq, Dh] and [P, Hkv, Tb, Dh]; the tables [B, W]")
    (tokens, heads, size), (blocks, kv_heads, block_tokens, _) = q.shape, keys.shape
    fits = heads % kv_heads == 0 and heads <= _WIDEST_GROUP * kv_heads
    require_true(fits, f"{_OP}: {shapes}; Hq must be a multiple of Hkv, up to {_WIDEST_GROUP} times it")
    fits = size % 8 == 0 and 0 < size <= _SIZES[-1]
    require_true(fits, f"{_OP}: {shapes}; Dh must be a multiple of 8 up to {_SIZES[-1]}")
    require_true(block_tokens % 8 == 0, f"{_OP}: {shapes}; Tb must be a multiple of 8")
    require_true(window is None or window > 0, f"{_OP}: the window is {window} tokens, must be at least 1")
    strided = q.dtype == BF16 and q.strides[1:] == (2 * size, 2) and q.strides[0] % 16 == 0
    require_true(strided, f"{_OP}: q is {q.dtype} with strides {q.strides}, must be rows of heads, bf16")
    require_aligned(_OP, "q", q)
    require(_OP, "keys", keys, (blocks, kv_heads, block_tokens, size), BF16)
    require(_OP, "values", values, keys.shape, BF16)
    require(_OP, "out", out, (tokens, heads * size), BF16)
    sequences, width = batch.block_tables.shape
    require(_OP, "block_tables", batch.block_tables, (sequences, width), np.int32)
    require(_OP, "query_starts", batch.query_starts, (sequences + 1,), np.int32)
    require(_OP, "context_lengths", batch.context_lengths, (sequences,), np.int32)
