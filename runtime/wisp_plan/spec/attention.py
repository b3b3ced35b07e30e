"""Self-attention with grouped key/value heads."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.spec.cache import PagedKV
from wisp_plan.spec.rope import RopeSpec


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Self-attention of one layer.

    Attributes:
        heads, kv_heads, head_size: Hq, Hkv, Dh.
        rope: rotary position embedding of queries and keys.
        window: tokens that a token may look back, its own included; None: all.
        has_qkv_bias, has_output_bias: biases of the projections.
        has_qk_norm: RMS norm of each query and key head before RoPE.
    """

    heads: int
    kv_heads: int
    head_size: int
    rope: RopeSpec
    window: int | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_qk_norm: bool = False

    @property
    def query_size(self) -> int:
        """Channels of all query heads: Hq · Dh."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Channels of all key heads, and of all value heads: Hkv · Dh."""
        return self.kv_heads * self.head_size

    @property
    def rotary_size(self) -> int:
        """Channels of a head that RoPE is applied to."""
        return self.rope.rotary_size or self.head_size

    def cache(self) -> PagedKV:
        """Return the layer's cache of a sequence: keys and values of every token in the window."""
        return PagedKV(self.kv_heads, self.head_size, self.head_size, window=self.window)
