"""Weights of decoders whose checkpoints name their tensors as Hugging Face's Llama does.

Llama, Mistral, Qwen2 and Qwen3 do. A projection is ``[out, in]``; Q, K and V are stacked, and so are gate and
up. Each kind of mixer and feed-forward block is declared by a function of its own, found by its spec's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import GateUpRows, RotaryRows, WeightSpec, stacked


def decoder_weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare the weights in the order in which a step reads them; tied embeddings need no ``lm_head``."""
    table = spec.vocab, spec.hidden
    embeddings = stacked(("model.embed_tokens.weight", table))
    yield WeightSpec("embeddings.weight", table, embeddings, "embedding")
    for index, layer in enumerate(spec.layers):
        name, tensor = f"layers.{index}", f"model.layers.{index}"
        if layer.mixer is not None:
            yield norm_weight(f"{name}.input_norm", f"{tensor}.input_layernorm", spec.hidden)
            yield from LAYER_WEIGHTS[type(layer.mixer)](layer.mixer, spec.hidden, name, tensor)
        if layer.ffn is not None:
            yield norm_weight(f"{name}.mlp_norm", f"{tensor}.post_attention_layernorm", spec.hidden)
            yield from LAYER_WEIGHTS[type(layer.ffn)](layer.ffn, spec.hidden, name, tensor)
    yield norm_weight("norm", "model.norm", spec.hidden)
    if not spec.ties_embeddings:
        yield WeightSpec("head.weight", table, stacked(("lm_head.weight", table)), "head")


def attention_weights(spec: AttentionSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    """Declare the attention of a layer, which is ``name`` in the model and ``tensor`` in the checkpoint."""
    tensor += ".self_attn"
    parts = (("q_proj", spec.query_size), ("k_proj", spec.kv_size), ("v_proj", spec.kv_size))
    outputs = spec.query_size + 2 * spec.kv_size
    heads: dict[str, Any] = {"shard_axis": 0, "shard_unit": spec.head_size, "rows": rotary_rows(spec)}
    weights = stacked(*((f"{tensor}.{part}.weight", (size, hidden)) for part, size in parts))
    yield WeightSpec(f"{name}.qkv.weight", (outputs, hidden), weights, "projection", **heads)
    if spec.has_qkv_bias:
        biases = stacked(*((f"{tensor}.{part}.bias", (size,)) for part, size in parts))
        yield WeightSpec(f"{name}.qkv.bias", (outputs,), biases, "bias", **heads)
    if spec.has_qk_norm:
        yield norm_weight(f"{name}.q_norm", f"{tensor}.q_norm", spec.head_size)
        yield norm_weight(f"{name}.k_norm", f"{tensor}.k_norm", spec.head_size)
    if spec.has_sinks:
        sinks = stacked((f"{tensor}.sinks", (spec.heads,)))
        yield WeightSpec(f"{name}.sinks", (spec.heads,), sinks, "parameter", shard_axis=0, dtype="F32")
    shape = hidden, spec.query_size
    yield row_parallel(f"{name}.output", f"{tensor}.o_proj", shape, unit=spec.head_size)
    if spec.has_output_bias:
        yield row_parallel_bias(f"{name}.output", f"{tensor}.o_proj", hidden)


def dense_weights(spec: DenseSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    """Declare the gated MLP of a layer; arguments as of :func:`attention_weights`."""
    tensor += ".mlp"
    parts, rows = ("gate_proj", "up_proj"), GateUpRows()
    weights = stacked(*((f"{tensor}.{part}.weight", (spec.inner, hidden)) for part in parts))
    shape = 2 * spec.inner, hidden
    yield WeightSpec(f"{name}.gate_up.weight", shape, weights, "projection", shard_axis=0, rows=rows)
    yield row_parallel(f"{name}.down", f"{tensor}.down_proj", (hidden, spec.inner))
    if spec.has_bias:
        biases = stacked(*((f"{tensor}.{part}.bias", (spec.inner,)) for part in parts))
        yield WeightSpec(f"{name}.gate_up.bias", shape[:1], biases, "bias", shard_axis=0, rows=rows)
        yield row_parallel_bias(f"{name}.down", f"{tensor}.down_proj", hidden)


DeclareLayer = Callable[[Any, int, str, str], Iterator[WeightSpec]]

LAYER_WEIGHTS: dict[type[Any], DeclareLayer] = {
    AttentionSpec: attention_weights,
    DenseSpec: dense_weights,
}
"""Declaration of each kind of mixer and feed-forward block, by the type of its spec."""


def norm_weight(name: str, tensor: str, size: int) -> WeightSpec:
    """Declare the weight of a norm over ``size`` channels."""
    return WeightSpec(f"{name}.weight", (size,), stacked((f"{tensor}.weight", (size,))), "norm")


def row_parallel(name: str, tensor: str, shape: tuple[int, int], *, unit: int = 1) -> WeightSpec:
    """Declare a projection whose inputs ranks share, so that their results are partial sums."""
    sources = stacked((f"{tensor}.weight", shape))
    return WeightSpec(f"{name}.weight", shape, sources, "projection", shard_axis=1, shard_unit=unit)


def row_parallel_bias(name: str, tensor: str, size: int) -> WeightSpec:
    """Declare the bias of a :func:`row_parallel` projection, which rank 0 alone adds."""
    sources = stacked((f"{tensor}.bias", (size,)))
    return WeightSpec(f"{name}.bias", (size,), sources, "bias", is_on_first_rank=True)


def rotary_rows(spec: AttentionSpec) -> RotaryRows | None:
    """Return the row structure of Q, K and V; None where a GEMM cannot apply RoPE to them itself."""
    rotates_all = spec.rotary_size == spec.head_size
    return RotaryRows(spec.head_size) if rotates_all and not spec.has_qk_norm else None
