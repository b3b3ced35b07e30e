"""Prefill attention over a quantized cache: contexts of prompts are dequantized to bf16, then attended to.

Each context is dequantized once a layer; the kernels of a bf16 cache then read it once a tile of queries. The
scratch cache holds the longest sequence; where the sequences of a step need more, there are several rounds.
All of them are planned once a step, and every layer uses the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.buffers.buffer import numbered
from wisp_plan.memory.buffers.kv_cache import KV_SCRATCH, block_runs
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.attention.prefill_attention import PlannedChunks, PrefillAttention, chunks_of_batch
from wisp_runtime.ops.cuda.attention.prefill_plan import kind_of, place
from wisp_runtime.ops.cuda.attention.prefill_rounds import rounds
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.kv_cache.quantized_kv import BlockRuns, QuantizedKv
from wisp_runtime.ops.protocol.attention import KvEncoding


@dataclass(frozen=True, slots=True)
class _Planned:
    """Rounds of a kind's last batch: blocks to dequantize, and the prompts that attend to them."""

    batch: Batch
    key: tuple[object, ...]
    rounds: tuple[tuple[BlockRuns, PlannedChunks], ...]


class QuantizedPrefill:
    """Prefill attention over a quantized cache on one GPU.

    Args:
        device: the GPU.
        prefill: prefill attention over a bf16 cache.
        kv: the scratch cache.
    """

    def __init__(self, device: Gpu, prefill: PrefillAttention, kv: QuantizedKv) -> None:
        self._device, self._prefill, self._kv = device, prefill, kv
        self._planned: dict[object, _Planned] = {}

    def __call__(
        self,
        q: Array,
        keys: Array,
        values: Array,
        batch: Batch,
        *,
        encoding: KvEncoding,
        scale: float,
        window: int | None,
        out: Array,
        sinks: Array | None = None,
    ) -> None:
        """Let every chunk attend to its sequence's cache; see :class:`.prefill_attention.PrefillAttention`.

        Args:
            keys, values: ``[P, Hkv, Tb, bytes of a row]`` uint8, this step's tokens already stored.
            batch: the same object for all layers of a kind in a step.
            encoding: their format and scales.
        """
        key, kind = (q.shape, q.strides, keys.shape, out.shape, out.strides), kind_of(q, keys, window)
        planned = self._planned.get(kind)
        if planned is None or planned.batch is not batch or planned.key != key:
            name = numbered(KV_SCRATCH, place(self._planned, kind))
            planned = _Planned(batch, key, self._plan(q, keys, batch, window, out, name))
            self._planned[kind] = planned
        for runs, chunks in planned.rounds:
            k, v = self._kv.read(keys, values, batch.block_tables, runs, encoding, q.shape[2])
            self._prefill.run(chunks, q, k, v, scale=scale, out=out, sinks=sinks)

    def _plan(
        self, q: Array, keys: Array, batch: Batch, window: int | None, out: Array, name: str
    ) -> tuple[tuple[BlockRuns, PlannedChunks], ...]:
        """Plan every round, and copy all of their tables at once."""
        (_, kv_heads, block_tokens, _), size = keys.shape, q.shape[2]
        parts = list(rounds(chunks_of_batch(batch), block_tokens, window, self._kv.blocks))
        if not parts:
            return ()
        most = max(part.blocks for part in parts)
        k, v = self._kv.scratch(kv_heads, block_tokens, size, most)
        table = self._kv.scratch_table(len(k))
        chunks = [part.chunks for part in parts]
        planned = self._prefill.plan(q, k, v, chunks, table, window, out, name)
        host = np.concatenate([part.runs for part in parts])
        runs = self._device.workspace.view(block_runs(len(host), name))
        self._device.uploads.upload(runs, host)
        ends = np.cumsum([len(part.runs) for part in parts]).tolist()
        return tuple(
            (BlockRuns(runs[end - len(part.runs) : end], part.blocks), one)
            for part, one, end in zip(parts, planned, ends, strict=True)
        )
