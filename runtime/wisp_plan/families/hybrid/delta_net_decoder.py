"""Translation of decoders with Gated DeltaNet in most layers, and gated attention in the others."""

from __future__ import annotations

from dataclasses import replace

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.layer import LayerSpec, MixerSpec, NormSpec
from wisp_plan.spec.model import ModelSpec

FULL, LINEAR = "full_attention", "linear_attention"
_INTERVAL = 4
_ROTARY_SHARE = 0.25


def read_delta_net_decoder(
    reader: ConfigReader,
    architecture: str,
    family: str,
    *,
    defaults: Defaults,
    is_grouped: bool,
) -> ModelSpec:
    """Read a model with zero-centred norms, whose attention has an output gate and norms of Q and K.

    Args:
        is_grouped: whether the checkpoint stores the projections of DeltaNet a key head at a time.

    Raises:
        ConfigInvalid: a key is missing, mistyped or impossible.
    """
    has_bias = reader.flag("attention_bias", False)
    dense = read_dense_decoder(
        reader,
        architecture,
        family,
        biases=Biases(qkv=has_bias, output=has_bias),
        defaults=replace(defaults, rotary_share=_ROTARY_SHARE),
        has_qk_norm=True,
    )
    attention = dense.layers[0].mixer
    assert isinstance(attention, AttentionSpec)
    mixers: dict[str, MixerSpec] = {
        FULL: replace(attention, has_output_gate=True),
        LINEAR: _read_delta_net(reader, is_grouped),
    }
    norms = NormSpec(dense.final_norm.eps, is_zero_centred=True)
    layers = tuple(
        LayerSpec(mixers[kind], dense.layers[0].ffn, norms) for kind in _read_kinds(reader, len(dense.layers))
    )
    return replace(dense, layers=layers, final_norm=norms)


def _read_delta_net(reader: ConfigReader, is_grouped: bool) -> DeltaNetSpec:
    key_heads = reader.integer("linear_num_key_heads", 16)
    value_heads = reader.integer("linear_num_value_heads", 32)
    if value_heads % key_heads:
        wanted = f"a multiple of linear_num_key_heads ({key_heads}); {value_heads} is none"
        raise reader.bad("linear_num_value_heads", wanted)
    return DeltaNetSpec(
        key_heads,
        value_heads,
        reader.integer("linear_key_head_dim", 128),
        reader.integer("linear_value_head_dim", 128),
        kernel=reader.integer("linear_conv_kernel_dim", 4, minimum=2),
        is_grouped=is_grouped,
    )


def _read_kinds(reader: ConfigReader, layers: int) -> list[str]:
    """Read the kind of each layer: listed, or each ``full_attention_interval``-th one has attention."""
    if reader.values.get("layer_types") is None:
        interval = reader.integer("full_attention_interval", _INTERVAL)
        return [LINEAR if (index + 1) % interval else FULL for index in range(layers)]
    kinds = reader.items("layer_types")
    if len(kinds) != layers or any(kind not in (FULL, LINEAR) for kind in kinds):
        raise reader.bad("layer_types", f"a list of {FULL} and {LINEAR}, one for each of {layers} layers")
    return list(map(str, kinds))
