"""Gemma 3, its text part: norms around every block, five layers with a window for each without."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.hugging_face import DecoderNames, decoder_weights
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.rope import parse_rope
from wisp_plan.families.windows import FULL, SLIDING, Windows, read_layer_types, windows_of
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, NormSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSpec

ARCHITECTURE = "Gemma3ForCausalLM"
FAMILY = "gemma3"

_ACTIVATION = "gelu_pytorch_tanh"
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")


def translate(reader: ConfigReader) -> ModelSpec:
    """Read the ``config.json`` of a Gemma 3."""
    _refuse(reader)
    has_bias = reader.flag("attention_bias", False)
    spec = read_dense_decoder(
        _with_rope(reader, FULL),
        ARCHITECTURE,
        FAMILY,
        biases=Biases(qkv=has_bias, output=has_bias),
        windows=_read_windows,
        defaults=Defaults(kv_heads=4, head_size=256, bos=(2,), eos=(1,)),
        has_qk_norm=True,
    )
    kinds = _read_kinds(reader, len(spec.layers))
    return replace(
        spec,
        layers=tuple(_layer(reader, *described) for described in zip(spec.layers, kinds, strict=True)),
        final_norm=replace(spec.final_norm, is_zero_centred=True),
        ties_embeddings=reader.flag("tie_word_embeddings", True),
        embedding_scale=_as_stored(math.sqrt(spec.hidden), spec.dtype),
    )


def gemma_weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare the weights of a Gemma 3."""
    return decoder_weights(spec, names=_NAMES)


_NAMES = DecoderNames(
    mlp_norm="pre_feedforward_layernorm",
    post_mixer_norm="post_attention_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)


def _layer(reader: ConfigReader, layer: LayerSpec, kind: str) -> LayerSpec:
    mixer, ffn = layer.mixer, layer.ffn
    assert isinstance(mixer, AttentionSpec)
    assert isinstance(ffn, DenseSpec)
    rope = parse_rope(_with_rope(reader, kind), mixer.head_size)
    scale = reader.number("query_pre_attn_scalar", 256.0) ** -0.5
    norms = NormSpec(layer.norms.eps, is_zero_centred=True, follow=True)
    return LayerSpec(replace(mixer, rope=rope, scale=scale), replace(ffn, activation="gelu_tanh"), norms)


def _refuse(reader: ConfigReader) -> None:
    if reader.text("hidden_activation", _ACTIVATION) != _ACTIVATION:
        raise reader.bad("hidden_activation", f"'{_ACTIVATION}'")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if reader.values.get(key) is not None:
            raise reader.bad(key, "null, as softcapping is not supported")


def _read_windows(reader: ConfigReader, layers: int, max_context: int) -> Windows:
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    return windows_of(_read_kinds(reader, layers), window, max_context)


def _read_kinds(reader: ConfigReader, layers: int) -> list[str]:
    """Read the kind of each layer; without a list every sixth has no window."""
    pattern = reader.integer("sliding_window_pattern", 6)
    return read_layer_types(reader, [SLIDING if (index + 1) % pattern else FULL for index in range(layers)])


def _with_rope(reader: ConfigReader, kind: str) -> ConfigReader:
    """Return the config with the RoPE of one kind of layers as the only one.

    Since transformers 5 there is a section a kind; before, two bases, and a scaling of full attention alone.
    """
    nested = reader.section("rope_parameters")
    rope: Mapping[str, object]
    if nested is not None and nested.has(FULL):
        section = nested.section(kind)
        if section is None:
            raise nested.bad(kind, "an object")
        rope = {"rope_parameters": section.values}
    elif kind == SLIDING:
        rope = {"rope_theta": reader.number("rope_local_base_freq", 10000.0)}
    else:
        theta = reader.number("rope_theta", 1e6)
        rope = {key: reader.values.get(key) for key in _ROPE_KEYS} | {"rope_theta": theta}
    others = {key: value for key, value in reader.values.items() if key not in _ROPE_KEYS}
    return ConfigReader({**others, **rope})


def _as_stored(value: float, dtype: str) -> float:
    """Round a factor to the dtype of the weights, in which the model computes."""
    if dtype != "BF16":
        return value
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    nearest = bits + 0x7FFF + (bits >> 16 & 1)
    (rounded,) = struct.unpack("<f", struct.pack("<I", nearest >> 16 << 16))
    return float(rounded)
