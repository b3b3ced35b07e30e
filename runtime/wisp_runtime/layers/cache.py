"""The paged KV cache: one arena for keys, one for values, allocated once.

Which block belongs to whom is the engine's business (``engine/cache/blocks.py``); here are only the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.spec.model import ModelSpec, dense_layer
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.ops import Ops


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers.

    Attributes:
        keys: ``[L, P, Hkv, Tb, Dh]``; a block of a head is contiguous.
        values: ``[L, P, Hkv, Tb, Dh]``.
        block_tokens: Tb, tokens per block.
    """

    keys: Array
    values: Array
    block_tokens: int

    @property
    def blocks(self) -> int:
        """P, the number of blocks."""
        return int(self.keys.shape[1])


def allocate(spec: ModelSpec, ops: Ops, *, blocks: int, block_tokens: int) -> KVCache:
    """Allocate the cache of a model: ``blocks`` blocks of ``block_tokens`` tokens.

    Raises:
        GpuOutOfMemory: there is less memory than the ledger counted on.
    """
    layer = dense_layer(spec)
    assert layer is not None, "layers that differ have no common cache yet"
    shape = (len(spec.layers), blocks, layer.attention.kv_heads, block_tokens, layer.attention.head_size)
    return KVCache(ops.kv_arena(shape), ops.kv_arena(shape), block_tokens)
