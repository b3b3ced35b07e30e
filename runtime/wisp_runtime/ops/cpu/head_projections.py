"""Heads before and after attention on the CPU: the projection to Q, K and V, RoPE, the output gate."""

from __future__ import annotations

from abc import abstractmethod

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.compact import CompactMatrix
from wisp_runtime.ops.cpu.packed import PackedMatrix
from wisp_runtime.ops.cpu.paged_attention import PagedAttention
from wisp_runtime.ops.protocol import checks
from wisp_runtime.ops.protocol.attention import KvCache, QkvProjection


class HeadProjections(PagedAttention):
    """Heads before and after attention, as :class:`.ops.CpuOps` has them."""

    @abstractmethod
    def linear(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear`."""

    @abstractmethod
    def rmsnorm(self, x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
        """See :func:`.reference.rmsnorm`."""

    def project_qkv(self, x: Array, projection: QkvProjection, batch: Batch, cache: KvCache) -> Array:
        """See :func:`.reference.linear`, :func:`.reference.rope` and :func:`.reference.write_kv`."""
        qkv, heads = self.linear(x, projection.weight, projection.bias), projection.heads
        checks.columns("qkv", qkv, (heads.queries + 2 * heads.keys) * heads.size)
        return self._finish(qkv, projection, batch, cache)

    def project_gated_qkv(
        self, x: Array, projection: QkvProjection, batch: Batch, cache: KvCache
    ) -> tuple[Array, Array]:
        """See :meth:`project_qkv`; the gate is as the GEMM leaves it."""
        projected, heads = self.linear(x, projection.weight, projection.bias), projection.heads
        gates = heads.queries * heads.size
        checks.columns("qkv and gate", projected, gates + (heads.queries + 2 * heads.keys) * heads.size)
        qkv, gate = projected[:, :-gates], projected[:, -gates:]
        return self._finish(qkv, projection, batch, cache), gate

    def gate_heads(self, mixed: Array, gate: Array, rows: Array | None = None) -> Array:
        """See :func:`.reference.gate_heads`."""
        checks.rank("mixed", mixed, 2)
        checks.same_shape("gate", gate, mixed.shape)
        if rows is not None:
            checks.indices("rows", rows, len(mixed))
        return reference.gate_heads(mixed, gate, rows)

    def rope(self, x: Array, cosines: Array, sines: Array) -> None:
        """See :func:`.reference.rope`."""
        checks.rope(x, cosines, sines)
        reference.rope(x, cosines, sines)

    def _finish(self, qkv: Array, projection: QkvProjection, batch: Batch, cache: KvCache) -> Array:
        """Norm and rotate the heads of Q and K, write K and V, return Q."""
        heads, rope = projection.heads, projection.rope
        split = qkv.reshape(len(qkv), -1, heads.size)
        q, k = split[:, : heads.queries], split[:, heads.queries : heads.queries + heads.keys]
        for part, norm in ((q, heads.q_norm), (k, heads.k_norm)):
            if norm is not None:
                part[:] = self.rmsnorm(part, norm, eps=heads.eps, is_zero_centred=heads.is_zero_centred)
        checks.indices("positions", batch.positions, len(rope.cosines))
        cosines, sines = rope.cosines[batch.positions], rope.sines[batch.positions]
        self.rope(split[:, : heads.queries + heads.keys], cosines, sines)
        self.write_kv(k, split[:, heads.queries + heads.keys :], batch.slots, *cache)
        return q
