"""Self-attention over the paged KV cache: one GEMM for Q, K and V, RoPE, attention, output projection."""

from __future__ import annotations

from typing import Any

from wisp_plan.spec.attention import AttentionSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.attention import HeadLayout, KvCache, QkvProjection


class Attention:
    """One layer's attention.

    Args:
        context: position of the layer, and its weights.
        spec: heads, RoPE, window and sinks.
    """

    def __init__(self, context: LayerContext, spec: AttentionSpec) -> None:
        weights, name = context.weights, context.prefix
        self._ops, self._spec, self._place = context.ops, spec, (context.index, context.part)
        self._scale = spec.score_scale
        self._sinks = weights[f"{name}.sinks"] if spec.has_sinks else None
        self._output = Linear(context.ops, weights, f"{name}.output")
        norms = context.norms
        heads = HeadLayout(
            spec.heads,
            spec.kv_heads,
            spec.head_size,
            weights.get(f"{name}.q_norm.weight"),
            weights.get(f"{name}.k_norm.weight"),
            norms.eps,
            norms.is_zero_centred,
        )
        self._qkv = QkvProjection(
            weights[f"{name}.qkv.weight"], weights.get(f"{name}.qkv.bias"), heads, context.ropes.of(spec)
        )

    def __call__(self, x: Array, batch: Batch, cache: ModelCache, rows: Array | None = None) -> Array:
        """Map ``[N, D]`` to ``[N, D]``, writing this step's K and V to the cache.

        Args:
            rows: ``[R]``, the rows of the result that are wanted, ``[R, D]``; K and V are written of all.
        """
        spec, ops = self._spec, self._ops
        layer = cache.of_layer(*self._place)
        keys, values = layer.arrays
        kv, batch = KvCache(keys, values, layer.encoding), batch.of_group(layer.group)
        arguments = x, self._qkv, batch, kv
        q, gate = (
            ops.project_gated_qkv(*arguments) if spec.has_output_gate else (ops.project_qkv(*arguments), None)
        )
        options: dict[str, Any] = {"scale": self._scale, "window": spec.window, "sinks": self._sinks}
        mixed = ops.paged_attention(q, kv, batch, **options)
        mixed = mixed.reshape(len(x), -1)
        if gate is not None:
            return self._output(ops.gate_heads(mixed, gate, rows))
        return self._output(mixed if rows is None else ops.gather_rows(mixed, rows))
