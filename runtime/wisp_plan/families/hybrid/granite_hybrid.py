"""Granite 4: Mamba-2 or attention, then experts with a shared one, or an MLP; everything has a factor.

Each branch is multiplied by ``residual_multiplier`` m before it is added to the stream. A stream 1 / m as
large has plain branches, and equal norms if their eps is 1 / m ** 2 as large: so m is in the embeddings'
factor and in eps, and no layer multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.hugging_face import decoder_weights
from wisp_plan.families.hybrid.mamba_keys import (
    ATTENTION,
    MAMBA,
    read_head_size,
    read_kinds,
    require_groups,
    require_layers,
    require_unbounded_steps,
    require_value,
)
from wisp_plan.families.mixtures.experts import read_chosen, read_experts
from wisp_plan.families.mixtures.weights import ExpertNames, router_weights
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, MixerSpec, NormSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.weight import GateUpRows, WeightSource, WeightSpec, part_of, stacked

ARCHITECTURE, FAMILY = "GraniteMoeHybridForCausalLM", "granitemoehybrid"

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Granite 4's ``config.json``."""
    reader = reader.with_defaults(_DEFAULTS)
    require_unbounded_steps(reader)
    require_value(reader, "normalization_function", "rmsnorm")
    has_bias = reader.flag("attention_bias", False)
    dense = read_dense_decoder(
        reader,
        ARCHITECTURE,
        FAMILY,
        biases=Biases(qkv=has_bias, output=has_bias),
        defaults=Defaults(bos=(1,), eos=(2,)),
    )
    factor = reader.number("residual_multiplier", 1.0)
    norms = NormSpec(dense.final_norm.eps / factor**2)
    mixers = _read_mixers(reader, dense)
    ffn = _read_ffn(reader)
    return replace(
        dense,
        layers=tuple(LayerSpec(mixer, ffn, norms) for mixer in mixers),
        final_norm=norms,
        embedding_scale=reader.number("embedding_multiplier", 1.0) / factor,
        logits_scale=1 / reader.number("logits_scaling", 1.0),
    )


def _read_mixers(reader: ConfigReader, dense: ModelSpec) -> tuple[MixerSpec, ...]:
    key = "layer_types" if reader.values.get("layer_types") is not None else "layers_block_type"
    kinds: tuple[str, ...] = (MAMBA,) * len(dense.layers)
    if reader.values.get(key) is not None:
        kinds = read_kinds(reader, key, (MAMBA, ATTENTION))
        require_layers(reader, kinds, key)
    mixers: dict[str, MixerSpec] = {ATTENTION: _read_attention(reader, dense)}
    if MAMBA in kinds:
        mixers[MAMBA] = _read_mamba(reader, dense)
    return tuple(mixers[kind] for kind in kinds)


def _read_attention(reader: ConfigReader, dense: ModelSpec) -> AttentionSpec:
    """Read attention, whose positions are not encoded unless the config says ``rope``."""
    attention, key = dense.layers[0].mixer, "position_embedding_type"
    assert isinstance(attention, AttentionSpec)
    if reader.values.get(key) not in (None, "nope", "rope"):
        raise reader.bad(key, "rope, nope or null")
    rope = attention.rope if reader.values.get(key) == "rope" else None
    return replace(attention, rope=rope, scale=reader.number("attention_multiplier", 1.0))


def _read_mamba(reader: ConfigReader, dense: ModelSpec) -> MambaSpec:
    heads, inner = reader.integer("mamba_n_heads", 128), reader.integer("mamba_expand", 2) * dense.hidden
    has_bias = reader.flag("mamba_proj_bias", False)
    spec = MambaSpec(
        heads=heads,
        head_size=read_head_size(reader, heads, inner, "mamba_expand times hidden_size"),
        state_size=reader.integer("mamba_d_state", 256),
        groups=reader.integer("mamba_n_groups", 1),
        kernel=reader.integer("mamba_d_conv", 4, minimum=2),
        has_conv_bias=reader.flag("mamba_conv_bias", True),
        has_input_bias=has_bias,
        has_output_bias=has_bias,
        norm_eps=dense.final_norm.eps,
    )
    require_groups(reader, spec, ("mamba_n_heads", "mamba_n_groups"))
    return spec


def _read_ffn(reader: ConfigReader) -> DenseSpec | MoeSpec:
    shared = DenseSpec(reader.integer("shared_intermediate_size", 1024))
    if reader.integer("num_local_experts", 8, minimum=0) == 0:
        return shared
    experts = read_experts(reader, "num_local_experts", default=8)
    router = RouterSpec(experts, read_chosen(reader, experts, 2))
    return MoeSpec(router, reader.integer("intermediate_size"), shared=shared)


_NAMES = ExpertNames(router="router.layer")


def granite_weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare the weights, in which gate lies above up, and experts one behind the other."""
    return decoder_weights(spec, {DenseSpec: _mlp_weights, MoeSpec: _moe_weights})


def _mlp_weights(spec: DenseSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    yield from _gate_up_and_down(f"{name}.", f"{tensor}.shared_mlp", (spec.inner, hidden))


def _moe_weights(spec: MoeSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    yield from router_weights(spec, hidden, name, (f"{tensor}.block_sparse_moe",), _NAMES)
    sizes = spec.router.experts, spec.inner, hidden
    yield from _gate_up_and_down(f"{name}.experts.", f"{tensor}.block_sparse_moe", sizes)
    if spec.shared is not None:
        yield from _gate_up_and_down(f"{name}.shared.", f"{tensor}.shared_mlp", (spec.shared.inner, hidden))


def _gate_up_and_down(prefix: str, tensor: str, sizes: tuple[int, ...]) -> Iterator[WeightSpec]:
    """Declare projections of an MLP ``(F, D)``, or of experts ``(E, F, D)``; ranks share them along F."""
    *leading, inner, hidden = sizes
    shape, axis = (*leading, 2 * inner, hidden), len(leading)
    zeros = (0,) * axis

    def half(first: int) -> WeightSource:
        slices = *map(range, leading), range(first, first + inner), range(hidden)
        return part_of(f"{tensor}.input_linear.weight", shape, slices, (*zeros, first, 0))

    halves, rows = (half(0), half(inner)), GateUpRows()
    yield WeightSpec(f"{prefix}gate_up.weight", shape, halves, "projection", shard_axis=axis, rows=rows)
    shape = *leading, hidden, inner
    down = stacked((f"{tensor}.output_linear.weight", shape))
    yield WeightSpec(f"{prefix}down.weight", shape, down, "projection", shard_axis=axis + 1)
