"""Kernels between bf16 rows and a quantized cache: store a step's K and V, read blocks, rotate heads."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.buffers.kv_cache import KV_SCRATCH, scratch_table
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.protocol.attention import KvEncoding

_THREADS = constants()["kv_threads"]
_GROUP = 16  # channels of a thread
_MAX_HEAD_SIZE = 256


class _RowShape(ctypes.Structure):
    """``RowShape`` of kernels/include/kv_cache/rows.cuh."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kv_heads", "head_size", "block_tokens", "lanes", "run")),
        ("rotation_factor", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class BlockRuns:
    """Blocks to dequantize, which fill the scratch cache from its first block on.

    Attributes:
        runs: ``[C, RUN_FIELDS]`` int32 on the GPU: a sequence, its first block, the scratch block that this
            becomes (ascending), and the number of blocks.
        blocks: blocks of all runs.
    """

    runs: Array
    blocks: int


class QuantizedKv:
    """Stores and reads rows of quantized caches on one GPU.

    The scratch cache is bf16, ``[blocks, Hkv, Tb, Dh]``, in the workspace: a step's K and V pass through it
    to the cache, and contexts of prompts from the cache to prefill attention.

    Args:
        device: the GPU.

    Attributes:
        blocks: blocks of the scratch cache; 0: as many as are asked for (before :meth:`reserve`).
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self.blocks = 0
        self._slots: Array | None = None
        self._table: Array | None = None
        self._slot_views: dict[int, Array] = {}

    def reserve(self, blocks: int, block_tokens: int) -> None:
        """Fix the size of the scratch cache."""
        self.blocks = blocks
        self._number_slots(blocks * block_tokens)
        self.scratch_table(blocks)

    def scratch(self, kv_heads: int, block_tokens: int, head_size: int, blocks: int) -> tuple[Array, Array]:
        """Return keys and values of the scratch cache, of ``blocks`` blocks at least."""
        count = max(blocks, self.blocks)
        require_true(not self.blocks or blocks <= self.blocks, f"{blocks} scratch blocks of {self.blocks}")
        shape = count, kv_heads, block_tokens, head_size
        workspace = self._device.workspace
        k, v = (workspace.array(f"{KV_SCRATCH}.{name}", shape, BF16) for name in ("keys", "values"))
        return k, v

    def scratch_slots(self, tokens: int) -> Array:
        """Return the slots of a step's tokens in the scratch cache: 0, 1, …, ``[N]`` int64."""
        if self._slots is None or len(self._slots) < tokens:
            self._number_slots(tokens)
        view = self._slot_views.get(tokens)
        if view is None:
            assert self._slots is not None
            view = self._slot_views[tokens] = self._slots[:tokens]
        return view

    def scratch_table(self, blocks: int) -> Array:
        """Return the block table of the scratch cache: 0, 1, …, ``[blocks, 1]`` int32 at least."""
        if self._table is None or len(self._table) < blocks:
            self._table = self._device.workspace.view(scratch_table(blocks))
            numbers = np.arange(blocks, dtype=np.int32).reshape(-1, 1)
            self._table.set(numbers, stream=self._device.stream)
        return self._table

    def store(
        self, k: Array, v: Array, slots: Array, keys: Array, values: Array, encoding: KvEncoding
    ) -> None:
        """Quantize the rows of a step, which lie in the scratch cache, into a layer's cache.

        Args:
            k, v: scratch cache; token t is in block ``t / Tb``.
            slots: ``[N]`` int64, ``block * Tb + offset``; -1 writes nothing.
            keys, values: ``[P, Hkv, Tb, bytes of a row]`` uint8.
            encoding: their format and scales.

        Raises:
            ShapeError: an array differs from the above.
        """
        op, (_, kv_heads, block_tokens, size), tokens = "quantize_kv", k.shape, len(slots)
        check(op, keys, values, kv_heads, size, encoding)
        require(op, "slots", slots, (tokens,), np.int64)
        shape = _shape(kv_heads, size, block_tokens)
        kernel = self._device.kernels.get(op, f"{op}_{encoding.format.name}")
        arrays = k, v, slots, keys, values, np.int32(tokens)
        scales = np.float32(encoding.k_scale), np.float32(encoding.v_scale)
        kernel.launch(_grid(2 * tokens * kv_heads, shape), _THREADS, *arrays, *scales, shape)

    def read(
        self, keys: Array, values: Array, tables: Array, runs: BlockRuns, encoding: KvEncoding, head_size: int
    ) -> tuple[Array, Array]:
        """Dequantize blocks into the scratch cache.

        Args:
            keys, values: ``[P, Hkv, Tb, bytes of a row]`` uint8.
            tables: ``[B, W]`` int32.
            runs: blocks of the sequences in ``tables``.
            encoding: format and scales.
            head_size: Dh.

        Returns:
            Keys and values of the scratch cache.
        """
        op, (_, kv_heads, block_tokens, _) = "dequantize_kv", keys.shape
        check(op, keys, values, kv_heads, head_size, encoding)
        k, v = self.scratch(kv_heads, block_tokens, head_size, runs.blocks)
        shape = _shape(kv_heads, head_size, block_tokens)
        kernel = self._device.kernels.get(op, f"{op}_{encoding.format.name}")
        width = np.int32(tables.strides[0] // tables.itemsize)
        counts = np.int32(len(runs.runs)), np.int32(runs.blocks)
        arrays = keys, values, tables, width, runs.runs, k, v, *counts
        scales = np.float32(encoding.k_scale), np.float32(encoding.v_scale)
        rows = 2 * runs.blocks * kv_heads * block_tokens
        kernel.launch(_grid(rows, shape), _THREADS, *arrays, *scales, shape)
        return k, v

    def rotate(self, x: Array, heads: int, head_size: int, batch: Batch) -> None:
        """Rotate the heads of each sequence with one query, in place.

        Args:
            x: ``[N, Hq, Dh]`` or ``[N, Hq * Dh]`` bf16, rows apart by a multiple of 16 bytes.
        """
        op, sequences = "rotate_heads", len(batch.query_starts) - 1
        require_true(
            x.dtype == BF16 and x.strides[0] % 16 == 0, f"{op}: rows of x must be bf16, aligned to 16"
        )
        shape = _shape(heads, head_size, 0)
        stride = np.int64(x.strides[0] // BF16.itemsize)
        counts = np.int32(sequences), np.int32(heads)
        kernel = self._device.kernels.get(op)
        grid = _grid(sequences * heads, shape)
        kernel.launch(grid, _THREADS, x, batch.query_starts, stride, *counts, shape)

    def _number_slots(self, tokens: int) -> None:
        self._slots = self._device.workspace.array(f"{KV_SCRATCH}.slots", (tokens,), np.int64)
        self._slots.set(np.arange(tokens, dtype=np.int64), stream=self._device.stream)
        self._slot_views.clear()


def check(op: str, keys: Array, values: Array, kv_heads: int, head_size: int, encoding: KvEncoding) -> None:
    """Require one layer's quantized cache, with heads and blocks that the kernels take.

    Raises:
        ShapeError: it is another.
    """
    require_true(keys.ndim == 4, f"{op}: keys is {list(keys.shape)}, must be [P, Hkv, Tb, bytes of a row]")
    blocks, _, block_tokens, _ = keys.shape
    fits = head_size % _GROUP == 0 and 0 < head_size <= _MAX_HEAD_SIZE
    require_true(fits, f"{op}: Dh is {head_size}, must be a multiple of {_GROUP} up to {_MAX_HEAD_SIZE}")
    require_true(block_tokens % 16 == 0, f"{op}: blocks of {block_tokens} tokens, must be a multiple of 16")
    row = encoding.format.row_bytes(head_size)
    require(op, "keys", keys, (blocks, kv_heads, block_tokens, row), np.uint8)
    require(op, "values", values, keys.shape, np.uint8)


def _shape(kv_heads: int, head_size: int, block_tokens: int) -> _RowShape:
    run = head_size & -head_size
    lanes = 1 << (-(-head_size // _GROUP) - 1).bit_length()
    return _RowShape(kv_heads, head_size, block_tokens, lanes, run, run**-0.5)


def _grid(rows: int, shape: _RowShape) -> tuple[int]:
    return (-(-rows * shape.lanes // _THREADS),)
