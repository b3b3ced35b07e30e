"""Caches of the CPU, and attention over them: the reference functions behind checks of every shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.plain import BF16
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.threads import Workers
from wisp_runtime.ops.protocol import checks
from wisp_runtime.ops.protocol.attention import UNQUANTIZED, KvCache, KvEncoding
from wisp_runtime.ops.reference import Decode
from wisp_runtime.ops.reference.attention import CachedKv
from wisp_runtime.ops.reference.kv_cache.blocks import QuantizedBlocks


@dataclass(frozen=True, slots=True)
class _LastBatch:
    """Decode tokens of the last attention's batch, and the shapes that they were listed for."""

    batch: Batch
    shapes: tuple[object, ...]
    single: dict[int, Decode]


class PagedAttention:
    """Caches, and attention over them, as :class:`.ops.CpuOps` has them.

    Unquantized ones are float32; of quantized ones one sequence is decoded at a time.
    """

    def __init__(self) -> None:
        self._last: _LastBatch | None = None
        self._workers: Workers | None = None

    def kv_arena(self, shape: tuple[int, ...], kv_format: KvFormat = BF16) -> Array:
        """Allocate zeros: bytes of a quantized format, else float32."""
        return np.zeros(shape, np.uint8 if kv_format.is_quantized else np.float32)

    def state_arena(self, shape: tuple[int, ...], dtype: str) -> Array:  # noqa: ARG002 (a GPU's business)
        """Allocate float32 zeros."""
        return np.zeros(shape, np.float32)

    def copy_slot(self, array: Array, source: int, target: int) -> None:
        """Copy one slot of recurrent state."""
        array[target] = array[source]

    def write_kv(
        self,
        k: Array,
        v: Array,
        slots: Array,
        keys: Array,
        values: Array,
        encoding: KvEncoding = UNQUANTIZED,
    ) -> None:
        """See :func:`.reference.write_kv`."""
        checks.cache(keys, values, k.shape[1:], encoding)
        checks.same_shape("v", v, k.shape)
        checks.same_shape("slots", slots, k.shape[:1])
        reference.write_kv(k, v, slots, *cached_kv(keys, values, k.shape[2], encoding))

    def paged_attention(
        self,
        q: Array,
        cache: KvCache,
        batch: Batch,
        *,
        scale: float,
        window: int | None,
        sinks: Array | None = None,
    ) -> Array:
        """See :func:`.reference.paged_attention`; of a quantized cache one sequence is decoded at a time."""
        keys, values, encoding = cache
        checks.rank("q", q, 3)
        checks.cache(keys, values, (keys.shape[1], q.shape[2]), encoding)
        if sinks is not None:
            checks.same_shape("sinks", sinks, q.shape[1:2])
        single = self._decodes(q, keys, batch, window)
        cached = cached_kv(keys, values, q.shape[2], encoding)
        workers = None if encoding.format.is_quantized else self._workers
        options: dict[str, Any] = {"scale": scale, "window": window, "sinks": sinks}
        return reference.paged_attention(q, *cached, batch, **options, single=single, workers=workers)

    def _decodes(self, q: Array, keys: Array, batch: Batch, window: int | None) -> dict[int, Decode]:
        """Check a batch and list its decode tokens, once for all layers."""
        shapes, last = (q.shape, keys.shape, window), self._last
        if last is None or last.batch is not batch or last.shapes != shapes:
            checks.attention(q, keys, batch)
            last = self._last = _LastBatch(batch, shapes, reference.decodes(batch, keys.shape[2], window))
        return last.single


def cached_kv(keys: Array, values: Array, head_size: int, encoding: KvEncoding) -> tuple[CachedKv, CachedKv]:
    """Return keys and values as the reference implementation reads and writes them."""
    kv_format = encoding.format
    if not kv_format.is_quantized:
        return keys, values
    scales = encoding.k_scale, encoding.v_scale
    k, v = (
        QuantizedBlocks(array, kv_format, head_size, scale)
        for array, scale in zip((keys, values), scales, strict=True)
    )
    return k, v
