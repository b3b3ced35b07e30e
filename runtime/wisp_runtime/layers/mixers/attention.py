"""Self-attention over the paged KV cache: one GEMM for Q, K and V, RoPE, attention, output projection."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.linear import Linear
from wisp_runtime.ops.protocol.attention import HeadLayout
from wisp_runtime.ops.protocol.upload import RowPermutation, qkv_permutation
from wisp_runtime.weights.arena import Parameter, Part


class Attention:
    """One layer's attention.

    Args:
        context: where the layer stands; its weights are those that :func:`attention_parameters` lists.
        spec: heads, RoPE and window.
    """

    def __init__(self, context: LayerContext, spec: AttentionSpec) -> None:
        weights, name = context.weights, context.prefix
        self._ops, self._spec, self._layer = context.ops, spec, context.index
        self._rope = context.ropes.of(spec)
        self._qkv, self._qkv_bias = weights[f"{name}.qkv.weight"], weights.get(f"{name}.qkv.bias")
        self._output = Linear(context.ops, weights, f"{name}.output")
        self._heads = HeadLayout(
            spec.heads,
            spec.kv_heads,
            spec.head_size,
            weights.get(f"{name}.q_norm.weight"),
            weights.get(f"{name}.k_norm.weight"),
            context.model.layers[context.index].norms.eps,
        )

    def __call__(self, x: Array, batch: Batch, cache: KVCache, rows: Array | None = None) -> Array:
        """Map ``[N, D]`` to ``[N, D]``, writing this step's K and V to the cache.

        Args:
            rows: ``[R]``, the rows of the result that are wanted, ``[R, D]``; K and V are written of all.
        """
        spec, ops = self._spec, self._ops
        keys, values = cache.keys[self._layer], cache.values[self._layer]
        q = ops.project_qkv(x, self._qkv, self._qkv_bias, self._heads, self._rope, batch, keys, values)
        mixed = ops.paged_attention(q, keys, values, batch, scale=spec.head_size**-0.5, window=spec.window)
        mixed = mixed.reshape(len(x), -1)
        return self._output(mixed if rows is None else ops.gather_rows(mixed, rows))


def attention_parameters(model: ModelSpec, layer: int) -> Iterator[Parameter]:
    """List the weights of one layer's attention; Q, K and V are stacked into one matrix."""
    spec = model.layers[layer].mixer
    assert isinstance(spec, AttentionSpec)
    source, name = f"model.layers.{layer}.self_attn", f"layers.{layer}"
    queries, keys = spec.query_size, spec.kv_size
    for kind, inputs in (("weight", (model.hidden,)), ("bias", ())):
        if kind == "weight" or spec.has_qkv_bias:
            sizes = (("q", queries), ("k", keys), ("v", keys))
            parts = tuple(Part(f"{source}.{which}_proj.{kind}", rows) for which, rows in sizes)
            yield Parameter(
                f"{name}.qkv.{kind}", (queries + 2 * keys, *inputs), parts, _qkv_permutation(spec)
            )
    if spec.has_qk_norm:
        for norm in ("q_norm", "k_norm"):
            part = Part(f"{source}.{norm}.weight", spec.head_size)
            yield Parameter(f"{name}.{norm}.weight", (spec.head_size,), (part,))
    output = Part(f"{source}.o_proj.weight", model.hidden)
    yield Parameter(f"{name}.output.weight", (model.hidden, queries), (output,))
    if spec.has_output_bias:
        bias = Part(f"{source}.o_proj.bias", model.hidden)
        yield Parameter(f"{name}.output.bias", (model.hidden,), (bias,))


def _qkv_permutation(spec: AttentionSpec) -> RowPermutation:
    rotates_all = spec.rotary_size == spec.head_size
    return qkv_permutation(spec.head_size, rotates_all=rotates_all, is_normed=spec.has_qk_norm)
