"""Projection to Q, K, V and an output gate on a GPU: a GEMM, RoPE, the cache; later the gate itself."""

from __future__ import annotations

import cupy as cp

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.attention.rope import Rope
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.elementwise.gate import GateHeads
from wisp_runtime.ops.cuda.gemm.linear import Linear
from wisp_runtime.ops.cuda.gemm.tiling import ROW_TILE
from wisp_runtime.ops.cuda.kv_cache.quantized_kv import QuantizedKv
from wisp_runtime.ops.protocol.attention import KvCache, QkvProjection
from wisp_runtime.ops.protocol.weights.row_permutation import interleaved_head_size

MAX_FUSED_ROPE_TOKENS = 768
"""Tokens of a GEMM that applies RoPE itself: of more, fetching angles delays it longer than a launch."""


class HeadProjection:
    """Projection to heads, as :class:`.ops.CudaOps` has it; the result is in the buffer ``qkv``."""

    _linear: Linear
    _rope: Rope
    _kv: QuantizedKv
    _gate_heads: GateHeads
    _max_fused_rope_tokens: int

    def project_qkv(self, x: Array, projection: QkvProjection, batch: Batch, cache: KvCache) -> Array:
        """Launch a GEMM that applies RoPE itself; of many tokens a plain one and :class:`.rope.Rope`.

        Into a quantized cache K and V go through the scratch cache.
        """
        keys, values, encoding = cache
        if not encoding.format.is_quantized:
            return self._project(x, projection, batch.positions, batch.slots, keys, values)
        tokens, block_tokens, heads = len(x), keys.shape[2], projection.heads
        k, v = self._kv.scratch(heads.keys, block_tokens, heads.size, -(-tokens // block_tokens))
        slots = self._kv.scratch_slots(tokens)
        q = self._project(x, projection, batch.positions, slots, k, v)
        self._kv.store(k, v, batch.slots, keys, values, encoding)
        return q

    def project_gated_qkv(
        self, x: Array, projection: QkvProjection, batch: Batch, cache: KvCache
    ) -> tuple[Array, Array]:
        """Launch as :meth:`project_qkv` does; the gate stays where the GEMM left it, behind V."""
        q, heads = self.project_qkv(x, projection, batch, cache), projection.heads
        first = (heads.queries + 2 * heads.keys) * heads.size
        shape = len(x), heads.queries * heads.size
        return q, _columns(q.data, first, shape, q.strides[0])

    def gate_heads(self, mixed: Array, gate: Array, rows: Array | None = None) -> Array:
        """See :class:`.gate.GateHeads`."""
        return self._gate_heads(mixed, gate, rows, out_name="rows")

    def _project(
        self,
        x: Array,
        projection: QkvProjection,
        positions: Array,
        slots: Array,
        keys: Array,
        values: Array,
    ) -> Array:
        weight, bias, heads = projection.weight, projection.bias, projection.heads
        sizes = heads.queries, heads.keys, heads.size
        tables = projection.rope.cosines, projection.rope.sines
        written = positions, slots, keys, values
        if len(x) <= self._max_fused_rope_tokens and self._can_fuse_rope(projection):
            return self._linear.rotary(x, weight, bias, sizes, *tables, *written, out_name="qkv")
        qkv = self._linear(x, weight, bias, out_name="qkv")
        columns = (heads.queries + 2 * heads.keys) * heads.size
        if weight.outputs > columns:  # a gate behind V
            qkv = _columns(qkv.data, 0, (len(qkv), columns), qkv.strides[0])
        norms = heads.q_norm, heads.k_norm, heads.eps
        options = {
            "is_interleaved": interleaved_head_size(weight.permutation) > 0,
            "is_zero_centred": heads.is_zero_centred,
        }
        return self._rope(qkv, sizes, *norms, *tables, *written, **options)

    def _can_fuse_rope(self, projection: QkvProjection) -> bool:
        weight, heads = projection.weight, projection.heads
        if interleaved_head_size(weight.permutation):
            return True
        is_all = weight.outputs == (heads.queries + 2 * heads.keys) * heads.size
        is_tile = heads.size == ROW_TILE and 2 * projection.rope.cosines.shape[1] == ROW_TILE
        has_norms = heads.q_norm is not None or heads.k_norm is not None
        return self._linear.fuses_rope and is_all and is_tile and not has_norms


def _columns(memory: cp.cuda.MemoryPointer, first: int, shape: tuple[int, int], row_bytes: int) -> Array:
    """Return the columns from ``first`` on of bf16 rows that begin ``row_bytes`` apart."""
    strides = row_bytes, BF16.itemsize
    return cp.ndarray(shape, BF16, memptr=memory + first * BF16.itemsize, strides=strides)
