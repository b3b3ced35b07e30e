"""Attention of a device: the projection to Q, K and V with RoPE and the KV write, and paged attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.plain import BF16
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.protocol.gemm import Matrix


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Heads in a row of Q, K and V, and the norm that some models put on each head of Q and K.

    Attributes:
        queries, keys: Hq, Hkv.
        size: Dh.
        q_norm, k_norm: ``[Dh]`` of the device, or None.
        eps: added to the mean square of those norms.
        is_zero_centred: whether their factor of a channel is one more than its weight.
    """

    queries: int
    keys: int
    size: int
    q_norm: Array | None = None
    k_norm: Array | None = None
    eps: float = 0.0
    is_zero_centred: bool = False


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of every position, ``[S, R / 2]`` float32 of the device; R channels rotate."""

    cosines: Array
    sines: Array


@dataclass(frozen=True, slots=True)
class QkvProjection:
    """Projection of a layer to its heads.

    Attributes:
        weight: ``[(Hq + 2 Hkv) Dh, D]``, Q above K above V, above a gate as wide as Q if there is one;
            interleaved for RoPE only where :meth:`.weights.WeightOps.row_permutation` gave it.
        bias: a number for each of its rows, permuted alike, or None.
        heads: head counts of a row, and the norms of Q and K.
        rope: the cosines and sines of every position.
    """

    weight: Matrix
    bias: Array | None
    heads: HeadLayout
    rope: RopeTable


@dataclass(frozen=True, slots=True)
class KvEncoding:
    """Encoding of one layer's cached keys and values.

    Attributes:
        format: format of both; on the CPU the unquantized one is float32, whatever its name.
        k_scale, v_scale: scales of the layer, which multiply what is stored; 1 where the format has none.
    """

    format: KvFormat = BF16
    k_scale: float = 1.0
    v_scale: float = 1.0


UNQUANTIZED = KvEncoding()


class KvCache(NamedTuple):
    """Cached keys and values of one layer.

    Attributes:
        keys, values: ``[P, Hkv, Tb, Dh]`` each; of a row's bytes if quantized.
        encoding: their format and scales.
    """

    keys: Array
    values: Array
    encoding: KvEncoding = UNQUANTIZED


Encodings = Sequence[KvEncoding]
"""Encodings of all layers."""


class AttentionOps(Protocol):
    """Softmax attention over the paged KV cache."""

    def project_qkv(self, x: Array, projection: QkvProjection, batch: Batch, cache: KvCache) -> Array:
        """Project to Q, K and V, norm and rotate the heads of Q and K, write K and V to the cache, return Q.

        Args:
            x: ``[N, D]``.
            projection: weights, heads and RoPE of the layer.
            batch: the step; ``positions`` and ``slots`` are read.
            cache: keys and values of the layer.

        Returns:
            ``[N, Hq, Dh]``; its rows may be farther apart.
        """
        ...

    def project_gated_qkv(
        self, x: Array, projection: QkvProjection, batch: Batch, cache: KvCache
    ) -> tuple[Array, Array]:
        """Compute :meth:`project_qkv` with a gate as wide as Q, whose rows of the weight are below V's.

        Returns:
            Q, and the gate ``[N, Hq Dh]`` without norm and RoPE; rows of both may be apart.
        """
        ...

    def gate_heads(self, mixed: Array, gate: Array, rows: Array | None = None) -> Array:
        """Return ``mixed * sigmoid(gate)``, both ``[N, Hq Dh]``; of ``rows`` ``[R]`` alone if given."""
        ...

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
        """Let each query attend to its sequence's cached tokens up to and including its own position.

        Args:
            q: ``[N, Hq, Dh]``; rows may be apart. Query head h reads KV head ``h // (Hq / Hkv)``.
            cache: keys and values of the layer; this step's tokens are written.
            batch: rows, blocks and lengths of each sequence.
            scale: multiplies the scores, usually ``Dh ** -0.5``.
            window: positions that a query attends to, its own included; None is all.
            sinks: ``[Hq]`` float32, one more logit a query head, which has no value and is not scaled; None:
                there are none.

        Returns:
            ``[N, Hq, Dh]``, contiguous.
        """
        ...
