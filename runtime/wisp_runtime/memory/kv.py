"""The paged KV cache: one arena for keys, one for values, allocated once.

Which block belongs to whom is the engine's business (``engine/blocks.py``); here are only the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_runtime.batch import Array


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
