"""Prefill attention over a quantized cache: contexts of prompts are dequantized to bf16, then attended to.

Each context is dequantized once a layer; the kernels of a bf16 cache then read it once a tile of queries. The
scratch cache holds the longest sequence; where the sequences of a step need more, there are several rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wisp_plan.memory.buffers.kv_cache import KV_SCRATCH
from wisp_runtime.batch import Array, Batch, StepKind
from wisp_runtime.ops.cuda.attention import prefill_plan
from wisp_runtime.ops.cuda.attention.prefill_attention import PrefillAttention
from wisp_runtime.ops.cuda.attention.prefill_rounds import Round, rounds
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.kv_cache.quantized_kv import QuantizedKv
from wisp_runtime.ops.protocol.attention import KvEncoding


@dataclass(frozen=True, slots=True)
class _Planned:
    """Rounds of the batch of the last call; the only round's arrays are on the device."""

    batch: Batch
    key: tuple[object, ...]
    rounds: tuple[Round, ...]
    uploaded: tuple[Batch, Array] | None


class QuantizedPrefill:
    """Prefill attention over a quantized cache on one GPU.

    Args:
        device: the GPU.
        prefill: prefill attention over a bf16 cache.
        kv: the scratch cache.
    """

    def __init__(self, device: Gpu, prefill: PrefillAttention, kv: QuantizedKv) -> None:
        self._device, self._prefill, self._kv = device, prefill, kv
        self._planned: _Planned | None = None

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
    ) -> None:
        """Let every chunk attend to its sequence's cache; see :class:`.prefill_attention.PrefillAttention`.

        Args:
            keys, values: ``[P, Hkv, Tb, bytes of a row]`` uint8, this step's tokens already stored.
            encoding: their format and scales.
        """
        planned = self._plan(batch, keys.shape[2], window)
        for number in range(len(planned.rounds)):
            some, entries = planned.uploaded or self._upload(batch, planned.rounds[number])
            k, v = self._kv.read(keys, values, batch.block_tables, entries, encoding, q.shape[2])
            self._prefill(q, k, v, some, scale=scale, window=window, out=out)

    def _plan(self, batch: Batch, block_tokens: int, window: int | None) -> _Planned:
        key, planned = (block_tokens, window), self._planned
        if planned is None or planned.batch is not batch or planned.key != key:
            min_queries = 1 if batch.kind is StepKind.PREFILL else 2
            chunks = prefill_plan.chunks_of(batch.query_starts_host, batch.context_lengths_host, min_queries)
            found = tuple(rounds(chunks, batch.block_tables.shape, block_tokens, window, self._kv.blocks))
            uploaded = self._upload(batch, found[0]) if len(found) == 1 else None
            planned = self._planned = _Planned(batch, key, found, uploaded)
        return planned

    def _upload(self, batch: Batch, one: Round) -> tuple[Batch, Array]:
        workspace, stream = self._device.workspace, self._device.stream
        entries = workspace.array(f"{KV_SCRATCH}.entries", one.entries.shape, np.int32)
        tables = workspace.array(f"{KV_SCRATCH}.tables", one.tables.shape, np.int32)
        entries.set(one.entries, stream=stream)
        tables.set(one.tables, stream=stream)
        return replace(batch, block_tables=tables, context_lengths_host=one.contexts), entries
