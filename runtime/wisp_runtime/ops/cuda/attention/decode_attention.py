"""Attention of decode tokens on the GPU: one query a sequence, K and V read once, where they lie.

Long sequences are split along KV, so that all thread blocks have about as much to do. The device does that
from the contexts, in a grid that follows from the batch's size and the model alone: one CUDA graph serves all
lengths. In batch-invariant mode a sequence is split by its own length alone.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_plan.memory.buffers.attention import DECODE_PARTIAL_ROWS, decode_arrivals, decode_attention
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.kv_cache import quantized_kv
from wisp_runtime.ops.protocol.attention import UNQUANTIZED, KvEncoding

_OP = "decode_attention"
_SIZES = (64, 80, 96, 128, 192, 256)  # head sizes that kernels exist for; others take the next larger one
_NARROW_GROUP, _MAX_GROUP = 8, 16
_TILE_TOKENS = constants()["decode_tile_tokens"]
_STAGES = constants()["decode_stages"]
_MIN_SPLIT_TOKENS = constants()["decode_min_split_tiles"] * _TILE_TOKENS
_MAX_SPLITS = constants()["decode_max_splits"]
_OWN_SPLIT_TOKENS = constants()["decode_own_split_tiles"] * _TILE_TOKENS
_NO_WINDOW = 2**31 - 1
_BLOCKS_PER_SM = constants()["decode_blocks_per_sm"]


class _Shape(ctypes.Structure):
    """``Shape`` of decode_scheduler.cuh."""

    _fields_ = (
        ("q_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("sequences", "kv_heads", "group", "head_size")),
        *((name, ctypes.c_int32) for name in ("block_tokens", "table_width")),
        ("reciprocal", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("filling", "window", "own_splits")),
        ("scale", ctypes.c_float),
    )


class _QuantizedShape(_Shape):
    """``QuantizedShape`` of quantized_kv.cuh."""

    _fields_ = (("value_scale", ctypes.c_float),)


@dataclass(frozen=True, slots=True)
class _Plan:
    kernel: Kernel
    grid: tuple[int, int]
    block: int
    shared_bytes: int
    shape: _Shape
    buffers: tuple[Buffer, ...]  # partial results, their statistics and arrivals; empty if nothing is split


class DecodeAttention:
    """Attend with one query a sequence.

    Args:
        device: the GPU.
        blocks_per_sm: thread blocks an SM that the splitting aims at.
    """

    def __init__(self, device: Gpu, *, blocks_per_sm: int = _BLOCKS_PER_SM) -> None:
        self._device = device
        self._wanted_blocks = blocks_per_sm * device.sm_count
        self._is_batch_invariant = False
        self._plans: dict[object, _Plan] = {}

    def set_batch_invariant(self) -> None:
        """Split a sequence by its own length alone, whatever the batch: of :data:`BATCH_SIZES` at most."""
        self._is_batch_invariant = True

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
        encoding: KvEncoding = UNQUANTIZED,
        sinks: Array | None = None,
    ) -> None:
        """Write the attention of each sequence with one query token to its row of ``out``.

        Sequences with several queries, or without context, are skipped: their rows stay as they are.
        Arguments are those of :meth:`.protocol.attention.AttentionOps.paged_attention`, of which

        Args:
            q: bf16, heads contiguous, rows apart by a multiple of 8 elements. Hq is at most 16 times Hkv, and
                Dh a multiple of 8 up to 256.
            keys, values: bf16; Tb a multiple of 8.
            batch: ``query_starts``, ``context_lengths`` and ``block_tables`` are read, on the device only.
                The first two before the kernel ahead has ended: copies write them, no kernel does.
            max_context: no sequence of a batch of this shape is longer (tokens); it bounds the grid alone.
            out: ``[N, Hq * Dh]`` bf16, contiguous.
            encoding: format of keys and values; if quantized they are ``[P, Hkv, Tb, bytes of a row]`` uint8,
                Tb and Dh multiples of 16. Of rotated formats q is rotated, and so is what is written.
            sinks: ``[Hq]`` float32, one more logit of each head, without a value; None: there are none.

        Raises:
            ShapeError: an array differs from the above.
        """
        tables = batch.block_tables
        key = q.shape, q.strides, keys.shape, tables.shape, out.shape, scale, window, max_context, encoding
        if sinks is not None:
            require(_OP, "sinks", sinks, (q.shape[1],), np.float32)
        plan = self._plans.get(key)
        if plan is None:
            _check(q, keys, values, batch, window, out, encoding)
            plan = self._plan(q, keys, tables, scale, window, max_context, encoding)
            remember(self._plans, key, plan)
        partials = stats = arrivals = None
        if plan.buffers:
            partials, stats, arrivals = (self._device.workspace.view(buffer) for buffer in plan.buffers)
        arrays = (
            q,
            keys,
            values,
            batch.query_starts,
            batch.context_lengths,
            tables,
            out,
            partials,
            stats,
            arrivals,
            sinks,
        )
        plan.kernel.launch(plan.grid, plan.block, *arrays, plan.shape, shared_bytes=plan.shared_bytes)

    def _plan(
        self,
        q: Array,
        keys: Array,
        tables: Array,
        scale: float,
        window: int | None,
        max_context: int,
        encoding: KvEncoding,
    ) -> _Plan:
        (_, kv_heads, block_tokens, _), (batch, width) = keys.shape, tables.shape
        (_, heads, size), group = q.shape, q.shape[1] // kv_heads
        visible = max_context if window is None else min(max_context, window)
        filling, splits = grid_splits(batch, kv_heads, heads, visible, self._wanted_blocks)
        partial_splits, own = min(2 * filling, splits), 0
        if self._is_batch_invariant:
            own = max_own_splits(heads)
            partial_splits = splits = batch * min(own, _splits_of(visible, _OWN_SPLIT_TOKENS))
            rows = f"{batch} sequences of {heads} heads"
            require_true(splits * heads <= DECODE_PARTIAL_ROWS, f"{_OP}: {rows} are too many to be split")
        entry = next(known for known in _SIZES if size <= known)
        op = op_of(encoding.format)
        warps = 4 if entry <= 128 else 2
        sizes = (
            *(q.strides[0] // 2, batch, kv_heads, group, size, block_tokens, width),
            *(-(-(2**32) // block_tokens), filling, window or _NO_WINDOW, own),
            scale * encoding.k_scale * math.log2(math.e),
        )
        is_quantized = encoding.format.is_quantized
        return _Plan(
            self._device.kernels.get(op, f"{op}_{entry}" + ("_wide" if group > _NARROW_GROUP else "")),
            (kv_heads, splits),
            32 * warps,
            shared_bytes=warps * _warp_bytes(entry, encoding.format),
            shape=_QuantizedShape(*sizes, encoding.v_scale) if is_quantized else _Shape(*sizes),
            buffers=_buffers(partial_splits * heads, size, batch, heads) if splits > batch else (),
        )


def op_of(kv_format: KvFormat) -> str:
    """Return the op that reads a KV format; the codes of turbo8 are those of fp8."""
    if not kv_format.is_quantized:
        return _OP
    return f"{_OP}_{'fp8' if kv_format.bits == 8 else kv_format.name}"


def _warp_bytes(entry: int, kv_format: KvFormat) -> int:
    """Return the shared memory of a warp, ``SmemLayout::kWarpBytes`` of the kernels."""
    plain = 2 * _TILE_TOKENS * 2 * (entry + 8)  # K and V of a tile, rows padded
    if not kv_format.is_quantized:
        return _STAGES * plain
    stages = _STAGES if kv_format.bits == 8 else 2 * _STAGES
    return stages * 2 * _TILE_TOKENS * kv_format.row_bytes(entry) + plain


def _buffers(rows: int, head_size: int, batch: int, heads: int) -> tuple[Buffer, ...]:
    return *decode_attention(rows, head_size), decode_arrivals(batch, heads)


def grid_splits(batch: int, kv_heads: int, heads: int, visible: int, wanted_blocks: int) -> tuple[int, int]:
    """Return how many splits the sequences of a batch can have, as the kernel splits them.

    A split is an even share of all tokens and an eighth more; so there are at most ``filling`` splits and one
    for each sequence, and at most ``2 * filling`` belong to sequences with several.

    Args:
        batch: B, sequences.
        kv_heads: Hkv.
        heads: Hq.
        visible: tokens that a query attends to, at most.
        wanted_blocks: thread blocks that fill the GPU.

    Returns:
        ``(filling, splits)``: splits that fill the GPU, for each KV head, and the most there can be.
    """
    filling = max(1, min(wanted_blocks // kv_heads, DECODE_PARTIAL_ROWS // (2 * heads)))
    of_sequence = min(_MAX_SPLITS, _splits_of(visible, _MIN_SPLIT_TOKENS))
    return filling, min(filling + batch, batch * of_sequence)


def max_own_splits(heads: int) -> int:
    """Return how many splits a sequence may have where they do not depend on the batch.

    So many that the partial results of all sequences of the largest step have their buffer.
    """
    return max(1, min(_MAX_SPLITS, DECODE_PARTIAL_ROWS // (BATCH_SIZES[-1] * heads)))


def _splits_of(visible: int, split_tokens: int) -> int:
    """Return how many splits ``visible`` tokens have at most; a window may begin within a tile."""
    return 1 + (visible - 1 + _TILE_TOKENS) // split_tokens


def _check(
    q: Array,
    keys: Array,
    values: Array,
    batch: Batch,
    window: int | None,
    out: Array,
    encoding: KvEncoding,
) -> None:
    shapes = f"q is {list(q.shape)}, keys is {list(keys.shape)}"
    ranks = (q.ndim, keys.ndim, batch.block_tables.ndim) == (3, 4, 2)
    require_true(ranks, f"{_OP}: {shapes}, must be [N, Hq, Dh] and [P, Hkv, Tb, Dh]; the tables [B, W]")
    (tokens, heads, size), (blocks, kv_heads, block_tokens, _) = q.shape, keys.shape
    fits = heads % kv_heads == 0 and heads <= _MAX_GROUP * kv_heads
    require_true(fits, f"{_OP}: {shapes}; Hq must be a multiple of Hkv, up to {_MAX_GROUP} times it")
    fits = size % 8 == 0 and 0 < size <= _SIZES[-1]
    require_true(fits, f"{_OP}: {shapes}; Dh must be a multiple of 8 up to {_SIZES[-1]}")
    require_true(block_tokens % 8 == 0, f"{_OP}: {shapes}; Tb must be a multiple of 8")
    require_true(window is None or window > 0, f"{_OP}: the window is {window} tokens, must be at least 1")
    strided = q.dtype == BF16 and q.strides[1:] == (2 * size, 2) and q.strides[0] % 16 == 0
    require_true(strided, f"{_OP}: q is {q.dtype} with strides {q.strides}, must be rows of heads, bf16")
    require_aligned(_OP, "q", q)
    if encoding.format.is_quantized:
        quantized_kv.check(_OP, keys, values, kv_heads, size, encoding)
    else:
        require(_OP, "keys", keys, (blocks, kv_heads, block_tokens, size), BF16)
        require(_OP, "values", values, keys.shape, BF16)
    require(_OP, "out", out, (tokens, heads * size), BF16)
    sequences, width = batch.block_tables.shape
    require(_OP, "block_tables", batch.block_tables, (sequences, width), np.int32)
    require(_OP, "query_starts", batch.query_starts, (sequences + 1,), np.int32)
    require(_OP, "context_lengths", batch.context_lengths, (sequences,), np.int32)
