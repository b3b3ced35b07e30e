"""Attention over the paged KV cache, in NumPy: prefill chunks, decode tokens, or both in one batch.

Chunks and windows are computed here; a single query that attends to all of its sequence in :mod:`.decode`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cpu.threads import Workers
from wisp_runtime.ops.reference.decode import Decode, attend_decodes, decodes, exponentials
from wisp_runtime.ops.reference.kv_cache.blocks import QuantizedBlocks
from wisp_runtime.ops.reference.kv_cache.hadamard import rotate

_MAX_ROWS_BY_BLOCK = 32  # few rows times a block is so small that OpenBLAS copies nothing: 4 times faster
_MAX_SCORES = 8 << 20  # 32 MiB of float32: a long chunk over a long context is computed in slices


CachedKv = Array | QuantizedBlocks
"""Keys or values of one layer: ``[P, Hkv, Tb, Dh]`` float32, or quantized."""


def write_kv(k: Array, v: Array, slots: Array, keys: CachedKv, values: CachedKv) -> None:
    """Write each token's K and V to its slot of one layer's cache.

    Args:
        k, v: ``[N, Hkv, Dh]`` float32.
        slots: ``[N]``, ``block * Tb + offset``.
        keys, values: ``[P, Hkv, Tb, Dh]``.
    """
    blocks, offsets = np.divmod(slots, keys.shape[2])
    for rows, cache in ((k, keys), (v, values)):
        if isinstance(cache, QuantizedBlocks):
            cache.write(rows, slots)
        else:
            cache[blocks, :, offsets] = rows


def paged_attention(
    q: Array,
    keys: CachedKv,
    values: CachedKv,
    batch: Batch,
    *,
    scale: float,
    window: int | None = None,
    sinks: Array | None = None,
    single: dict[int, Decode] | None = None,
    workers: Workers | None = None,
) -> Array:
    """Let every query attend to its sequence's cached tokens up to and including its own position.

    Arguments are those of :meth:`.protocol.attention.AttentionOps.paged_attention`, in float32, and

    Args:
        single: decode tokens of ``batch``, as :func:`.decode.decodes` lists them; None lists them here.
        workers: threads that share the decode tokens; None computes here.

    Returns:
        ``[N, Hq, Dh]`` float32, contiguous.

    Source: Kwon et al. 2023, arXiv:2309.06180 (paging); Ainslie et al. 2023, arXiv:2305.13245 (groups);
    Xiao et al. 2023, arXiv:2309.17453, and Miller 2023, "Attention is off by one" (sinks without a value).
    """
    is_rotated = isinstance(keys, QuantizedBlocks) and keys.kv_format.is_rotated
    q = rotate(q) if is_rotated else q
    out = np.empty(q.shape, np.float32)
    single = decodes(batch, keys.shape[2], window) if single is None else single
    attend_decodes(q, keys, values, list(single.values()), scale, sinks, out, workers)
    for row, context in enumerate(batch.context_lengths_host):
        if row in single:
            continue
        start, end = batch.query_starts_host[row], batch.query_starts_host[row + 1]
        first_query = context - (end - start)
        rows = max(1, _MAX_SCORES // (q.shape[1] * context))
        for low in range(start, end, rows):
            high = min(low + rows, end)
            span = first_query + low - start, first_query + high - start
            attended = _gather(keys, values, batch.block_tables[row], span, window)
            out[low:high] = _attend(q[low:high], attended, span, scale, window, sinks)
    return rotate(out) if is_rotated else out


@dataclass(frozen=True, slots=True)
class _Context:
    """Context of some queries of one sequence: S tokens in ``blocks`` blocks, the first at ``first``."""

    k: Array  # [blocks, Hkv, Tb, Dh]; beyond S other sequences may have written
    v: Array  # [Hkv, S, Dh]
    first: int


def _gather(
    keys: CachedKv, values: CachedKv, table: Array, span: tuple[int, int], window: int | None
) -> _Context:
    """Collect the context of queries at positions ``span``."""
    _, heads, block_tokens, size = keys.shape
    first_block = max(0, span[0] - window + 1) // block_tokens if window is not None else 0
    blocks = table[first_block : -(-span[1] // block_tokens)]
    first = first_block * block_tokens
    if isinstance(values, QuantizedBlocks):
        by_head = values.take(blocks).swapaxes(0, 1).reshape(heads, -1, size)
    else:
        by_head = values[blocks, np.arange(heads)[:, None]].reshape(heads, -1, size)
    return _Context(keys.take(blocks, axis=0), by_head[:, : span[1] - first], first)


def _attend(
    q: Array,
    attended: _Context,
    span: tuple[int, int],
    scale: float,
    window: int | None,
    sinks: Array | None,
) -> Array:
    """Return the attention of n consecutive queries ``[n, Hq, Dh]`` at positions ``span``."""
    (n, heads, size), (kv_heads, length, _) = q.shape, attended.v.shape
    group = heads // kv_heads
    queries = (q.reshape(n, kv_heads, group, size) * np.float32(scale)).transpose(1, 2, 0, 3)
    scores = _scores(queries.reshape(kv_heads, group * n, size), attended.k)[..., :length]
    if n > 1 or window is not None:
        by_query = scores.reshape(kv_heads, group, n, length)
        by_query += _mask(n, length, span[0] - attended.first, window)
        scores = by_query.reshape(scores.shape)
    logits = None if sinks is None else np.repeat(sinks.reshape(kv_heads, group, 1), n, axis=1)
    scores /= exponentials(scores, logits)
    mixed = (scores @ attended.v).reshape(kv_heads, group, n, size)
    return mixed.transpose(2, 0, 1, 3).reshape(n, heads, size)


def _scores(queries: Array, k: Array) -> Array:
    """Return ``queries`` ``[Hkv, R, Dh]`` times K of ``[blocks, Hkv, Tb, Dh]``: ``[Hkv, R, blocks * Tb]``."""
    blocks, heads, block_tokens, size = k.shape
    if queries.shape[1] > _MAX_ROWS_BY_BLOCK:
        return queries @ k.swapaxes(0, 1).reshape(heads, -1, size).swapaxes(1, 2)
    scores = np.empty((heads, queries.shape[1], blocks, block_tokens), np.float32)
    np.matmul(queries, k.swapaxes(2, 3), out=scores.transpose(2, 0, 1, 3))
    return scores.reshape(heads, queries.shape[1], -1)


def _mask(n: int, length: int, first_query: int, window: int | None) -> Array:
    """Return ``[n, S]`` float32: 0 where query i attends to key j, minus infinity elsewhere."""
    distance = np.arange(first_query, first_query + n)[:, None] - np.arange(length)
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return np.where(hidden, np.float32(-np.inf), np.float32(0))
