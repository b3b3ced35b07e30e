"""Falcon-H1: attention and Mamba-2 beside each other in each layer, then a gated MLP; all with muP's factors.

Factors of attention's input and keys are in the scale of its scores and of its result, that of Mamba's input
in those of its projections: equal, as nothing between them has a bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.hugging_face import DecoderNames, decoder_weights, dense_weights
from wisp_plan.families.hybrid.mamba_keys import (
    read_factors,
    read_head_size,
    require_groups,
    require_unbounded_steps,
    require_value,
)
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, ParallelSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSpec

ARCHITECTURE, FAMILY = "FalconH1ForCausalLM", "falcon_h1"

_DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Falcon-H1's ``config.json``."""
    reader = reader.with_defaults(_DEFAULTS)
    _require_known(reader)
    has_bias = reader.flag("attention_bias", False)
    dense = read_dense_decoder(
        reader,
        ARCHITECTURE,
        FAMILY,
        biases=Biases(has_bias, has_bias, reader.flag("mlp_bias", False)),
        defaults=Defaults(kv_heads=8, bos=(1,), eos=(2,)),
    )
    first = dense.layers[0]
    assert isinstance(first.mixer, AttentionSpec)
    assert isinstance(first.ffn, DenseSpec)
    gate_scale, down_scale = read_factors(reader, "mlp_multipliers", 2)
    layer = LayerSpec(
        _read_mixers(reader, dense, first.mixer),
        replace(first.ffn, gate_scale=gate_scale, scale=down_scale),
        first.norms,
    )
    return replace(
        dense,
        layers=(layer,) * len(dense.layers),
        embedding_scale=reader.number("embedding_multiplier", 1.0),
        logits_scale=reader.number("lm_head_multiplier", 1.0),
    )


def _require_known(reader: ConfigReader) -> None:
    require_unbounded_steps(reader)
    require_value(reader, "mamba_use_mlp", True)
    require_value(reader, "attn_layer_indices", None)
    for bias, factor in (
        ("attention_bias", "attention_in_multiplier"),
        ("mamba_proj_bias", "ssm_in_multiplier"),
    ):
        if reader.flag(bias, False) and reader.number(factor, 1.0) != 1:
            raise reader.bad(bias, f"false, as {factor} is not 1")


def _read_mixers(reader: ConfigReader, dense: ModelSpec, attention: AttentionSpec) -> ParallelSpec:
    into, out = (reader.number(f"attention_{side}_multiplier", 1.0) for side in ("in", "out"))
    scale = attention.score_scale * reader.number("key_multiplier", 1.0) * into**2
    scales = into * out, reader.number("ssm_out_multiplier", 1.0)
    return ParallelSpec((replace(attention, scale=scale), _read_mamba(reader, dense)), scales)


def _read_mamba(reader: ConfigReader, dense: ModelSpec) -> MambaSpec:
    heads, expanded = reader.integer("mamba_n_heads", 128), reader.integer("mamba_expand", 2) * dense.hidden
    inner = reader.optional_integer("mamba_d_ssm", 1024, minimum=1) or expanded
    into = reader.number("ssm_in_multiplier", 1.0)
    z, x, b, c, step = (into * factor for factor in read_factors(reader, "ssm_multipliers", 5))
    spec = MambaSpec(
        heads=heads,
        head_size=read_head_size(reader, heads, inner, "mamba_d_ssm"),
        state_size=reader.integer("mamba_d_state", 256),
        groups=reader.integer("mamba_n_groups", 1),
        kernel=reader.integer("mamba_d_conv", 4, minimum=2),
        has_conv_bias=reader.flag("mamba_conv_bias", True),
        has_input_bias=reader.flag("mamba_proj_bias", False),
        has_output_bias=reader.flag("projectors_bias", False),
        gating=_read_gating(reader),
        norm_eps=dense.final_norm.eps,
        scales=(z, x, b, c, step),
    )
    require_groups(reader, spec, ("mamba_n_heads", "mamba_n_groups"))
    return spec


def _read_gating(reader: ConfigReader) -> Literal["gate", "gate_then_norm", "norm_then_gate"]:
    if not reader.flag("mamba_rms_norm", False):
        return "gate"
    return "norm_then_gate" if reader.flag("mamba_norm_before_gate", True) else "gate_then_norm"


_NAMES = DecoderNames(mlp_norm="pre_ff_layernorm", final_norm="final_layernorm")


def falcon_weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare the weights, named as Llama's but for the MLP and its norms."""
    return decoder_weights(spec, {DenseSpec: partial(dense_weights, module="feed_forward")}, _NAMES)
