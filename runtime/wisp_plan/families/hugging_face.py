"""Weights of decoders whose checkpoints name their tensors as Hugging Face's Llama does.

Llama, Mistral, Qwen2 and Qwen3 do. A projection is ``[out, in]``; Q, K and V are stacked, and so are gate and
up. Each kind of mixer and feed-forward block is declared by a function of its own, found by its spec's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wisp_plan.families.hybrid.delta_net_weights import delta_net_weights
from wisp_plan.families.hybrid.mamba_weights import mamba_weights
from wisp_plan.families.mixtures.weights import moe_weights
from wisp_plan.families.projections import mlp_weights, norm_weight, row_parallel, row_parallel_bias
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, NormSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_plan.spec.weight import RotaryRows, WeightSource, WeightSpec, part_of, stacked


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Names of the embeddings and norms: those of a layer in it, the others beside the layers."""

    embeddings: str = "embed_tokens"
    input_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    final_norm: str = "norm"
    post_mixer_norm: str = ""
    post_mlp_norm: str = ""


LLAMA_NAMES = DecoderNames()


def decoder_weights(
    spec: ModelSpec,
    kinds: Mapping[type[Any], DeclareLayer] | None = None,
    names: DecoderNames = LLAMA_NAMES,
) -> Iterator[WeightSpec]:
    """Declare the weights in the order in which a step reads them; tied embeddings need no ``lm_head``.

    Args:
        kinds: declarations of kinds of layers that the family names otherwise than :data:`LAYER_WEIGHTS`.
        names: names of all else.
    """
    known = {**LAYER_WEIGHTS, **(kinds or {})}
    table = spec.vocab, spec.hidden
    embeddings = stacked((f"{spec.tensors}.{names.embeddings}.weight", table))
    yield WeightSpec("embeddings.weight", table, embeddings, "embedding")
    for index, layer in enumerate(spec.layers):
        name, tensor = f"layers.{index}", f"{spec.tensors}.layers.{index}"
        yield from layer_weights(layer, spec.hidden, name, tensor, known, names)
    yield norm_weight("norm", f"{spec.tensors}.{names.final_norm}", spec.hidden, spec.final_norm)
    if not spec.ties_embeddings:
        yield WeightSpec("head.weight", table, stacked(("lm_head.weight", table)), "head")


def layer_weights(
    layer: LayerSpec,
    hidden: int,
    name: str,
    tensor: str,
    kinds: Mapping[type[Any], DeclareLayer],
    names: DecoderNames,
) -> Iterator[WeightSpec]:
    """Declare a layer, which is ``name`` in the model and ``tensor`` in the checkpoint."""

    def norm(of: str, stored: str) -> WeightSpec:
        return norm_weight(f"{name}.{of}_norm", f"{tensor}.{stored}", hidden, layer.norms)

    if layer.mixers:
        yield norm("input", names.input_norm)
        for mixer in layer.mixers:
            for weight in kinds[type(mixer)](mixer, hidden, name, tensor):
                yield _of_norms(weight, layer.norms)
        if layer.norms.follow:
            yield norm("post_mixer", names.post_mixer_norm)
    if layer.ffn is not None:
        yield norm("mlp", names.mlp_norm)
        yield from kinds[type(layer.ffn)](layer.ffn, hidden, name, tensor)
        if layer.norms.follow:
            yield norm("post_mlp", names.post_mlp_norm)


def _of_norms(weight: WeightSpec, norms: NormSpec) -> WeightSpec:
    """Return a mixer's weight; where norms are zero-centred, those of Q and K are about 0 too."""
    is_of_heads = weight.name.endswith((".q_norm.weight", ".k_norm.weight"))
    return replace(weight, role="parameter") if is_of_heads and norms.is_zero_centred else weight


def attention_weights(
    spec: AttentionSpec, hidden: int, name: str, tensor: str, module: str = "self_attn"
) -> Iterator[WeightSpec]:
    """Declare the attention of a layer, which is ``name`` in the model and ``tensor`` in the checkpoint."""
    tensor += f".{module}"
    outputs = spec.projected_size
    heads: dict[str, Any] = {"rows": rotary_rows(spec)}
    if not spec.has_output_gate:
        heads |= {"shard_axis": 0, "shard_unit": spec.head_size}
    weights = _qkv_sources(spec, f"{tensor}.{{}}_proj.weight", (hidden,))
    yield WeightSpec(f"{name}.qkv.weight", (outputs, hidden), weights, "projection", **heads)
    if spec.has_qkv_bias:
        biases = _qkv_sources(spec, f"{tensor}.{{}}_proj.bias", ())
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


def _qkv_sources(spec: AttentionSpec, tensor: str, inputs: tuple[int, ...]) -> tuple[WeightSource, ...]:
    """Return the sources of Q, K, V and then the gate; a tensor with a gate has it below each head of Q.

    Args:
        tensor: name with ``{}`` for the letter.
        inputs: axes after the rows.
    """
    kv = spec.kv_size, *inputs
    k_and_v = (tensor.format("k"), kv), (tensor.format("v"), kv)
    if not spec.has_output_gate:
        return stacked((tensor.format("q"), (spec.query_size, *inputs)), *k_and_v)
    size, zeros = spec.head_size, (0,) * len(inputs)

    def part(head: int, half: int, target: int) -> WeightSource:
        first = (2 * head + half) * size
        slices = range(first, first + size), *map(range, inputs)
        shape = 2 * spec.query_size, *inputs
        return part_of(tensor.format("q"), shape, slices, (target + head * size, *zeros))

    moved = (replace(source, at=(spec.query_size + source.at[0], *zeros)) for source in stacked(*k_and_v))
    queries = (part(head, 0, 0) for head in range(spec.heads))
    gates = (part(head, 1, spec.query_size + 2 * spec.kv_size) for head in range(spec.heads))
    return *queries, *moved, *gates


def dense_weights(
    spec: DenseSpec, hidden: int, name: str, tensor: str, module: str = "mlp"
) -> Iterator[WeightSpec]:
    """Declare the MLP of a layer; arguments as of :func:`attention_weights`."""
    return mlp_weights(spec, hidden, name, f"{tensor}.{module}")


DeclareLayer = Callable[[Any, int, str, str], Iterator[WeightSpec]]

LAYER_WEIGHTS: dict[type[Any], DeclareLayer] = {
    AttentionSpec: attention_weights,
    DeltaNetSpec: delta_net_weights,
    MambaSpec: mamba_weights,
    DenseSpec: dense_weights,
    MoeSpec: moe_weights,
}
"""Declaration of each kind of mixer and feed-forward block, by the type of its spec."""


def rotary_rows(spec: AttentionSpec) -> RotaryRows | None:
    """Return the row structure of Q, K and V; None where a GEMM cannot apply RoPE to them itself."""
    rotates_all = spec.rotary_size == spec.head_size
    is_plain = rotates_all and not spec.has_qk_norm and not spec.has_output_gate
    return RotaryRows(spec.head_size) if is_plain else None
