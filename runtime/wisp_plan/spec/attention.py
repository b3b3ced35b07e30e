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
        rope: rotary position embedding of queries and keys; None: the layer has no positions.
        window: tokens that a token may look back, its own included; None: all.
        has_qkv_bias, has_output_bias: biases of the projections.
        has_qk_norm: RMS norm of each query and key head before RoPE, zero-centred as the layer's norms are.
        has_output_gate: gate of each channel of the heads' results, ``sigmoid`` of a projection as wide as Q.
        has_sinks: one more logit a query head in the softmax, which has no value.
        scale: factor of the scores; None: ``Dh ** -0.5``.
    """

    heads: int
    kv_heads: int
    head_size: int
    rope: RopeSpec | None
    window: int | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_qk_norm: bool = False
    has_output_gate: bool = False
    has_sinks: bool = False
    scale: float | None = None

    @property
    def query_size(self) -> int:
        """Channels of all query heads: Hq · Dh."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Channels of all key heads, and of all value heads: Hkv · Dh."""
        return self.kv_heads * self.head_size

    @property
    def projected_size(self) -> int:
        """Channels of Q, K, V and the output gate, if there is one."""
        return self.query_size * (2 if self.has_output_gate else 1) + 2 * self.kv_size

    @property
    def rotary_size(self) -> int:
        """Channels of a head that RoPE is applied to."""
        return 0 if self.rope is None else self.rope.rotary_size or self.head_size

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return self.head_size**-0.5 if self.scale is None else self.scale

    def cache(self) -> PagedKV:
        """Return the layer's cache of a sequence: keys and values of every token in the window."""
        return PagedKV(self.kv_heads, self.head_size, self.head_size, window=self.window)
