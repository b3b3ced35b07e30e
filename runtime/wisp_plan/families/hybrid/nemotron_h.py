"""Nemotron-H: one mixer or feed-forward block a layer, attention without positions, ungated squared ReLU.

Nemotron Nano 2 has MLPs, Nemotron 3 Nano mixtures of experts with DeepSeek's router, Nemotron 3 Super has
them in a latent space. transformers bounds time steps of prompts by ``time_step_min``, a bound of the
initialization; decoding and vLLM do not, nor does this. Layers that draft tokens (``mtp.*``) are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.hugging_face import (
    DeclareLayer,
    DecoderNames,
    attention_weights,
    decoder_weights,
    dense_weights,
)
from wisp_plan.families.hybrid.mamba_keys import (
    ATTENTION,
    MAMBA,
    read_kinds,
    require_groups,
    require_layers,
    require_unbounded_steps,
    require_value,
)
from wisp_plan.families.hybrid.mamba_weights import mamba_weights
from wisp_plan.families.mixtures.experts import read_chosen, read_deepseek_router, read_experts
from wisp_plan.families.mixtures.weights import ExpertNames, moe_weights
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, NormSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_plan.spec.weight import WeightSpec

ARCHITECTURE, FAMILY = "NemotronHForCausalLM", "nemotron_h"

_LETTERS = {"M": MAMBA, "*": ATTENTION, "-": "mlp", "E": "moe"}
_DEFAULTS = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "intermediate_size": 21504,
    "vocab_size": 131072,
    "max_position_embeddings": 4096,
    "layer_norm_epsilon": 1e-5,
}


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Nemotron-H's ``config.json``."""
    reader = reader.with_defaults(_DEFAULTS)
    kinds = _read_layers(reader)
    _require_known(reader)
    eps = reader.number("layer_norm_epsilon")
    beside = {"rms_norm_eps": eps, "num_hidden_layers": len(kinds)}
    read = ConfigReader({**reader.values, **beside})
    dense = read_dense_decoder(
        read, ARCHITECTURE, FAMILY, biases=Biases(), defaults=Defaults(kv_heads=8, bos=(1,), eos=(2,))
    )
    layers = tuple(_read_layer(read, kind, dense, NormSpec(eps)) for kind in kinds)
    return replace(dense, layers=layers, tensors="backbone")


def _read_layer(reader: ConfigReader, kind: str, dense: ModelSpec, norms: NormSpec) -> LayerSpec:
    if kind == MAMBA:
        return LayerSpec(_read_mamba(reader, norms.eps), None, norms)
    if kind == ATTENTION:
        return LayerSpec(_without_positions(dense), None, norms)
    ffn = _read_mlp(reader, "intermediate_size") if kind == "mlp" else _read_mixture(reader)
    return LayerSpec(None, ffn, norms)


def _read_layers(reader: ConfigReader) -> tuple[str, ...]:
    """Read the kind of each layer: ``layers_block_type``, or a letter each in ``hybrid_override_pattern``."""
    key = "layers_block_type"
    if reader.values.get(key) is not None:
        kinds = read_kinds(reader, key, tuple(_LETTERS.values()))
    else:
        key = "hybrid_override_pattern"
        pattern = reader.text(key)
        if any(letter not in _LETTERS for letter in pattern):
            raise reader.bad(
                key, f"a letter each layer: {', '.join(f'{k} ({v})' for k, v in _LETTERS.items())}"
            )
        kinds = tuple(_LETTERS[letter] for letter in pattern)
    require_layers(reader, kinds, key)
    return kinds


def _require_known(reader: ConfigReader) -> None:
    require_unbounded_steps(reader)
    require_value(reader, "mlp_hidden_act", "relu2")
    require_value(reader, "mamba_hidden_act", "silu")
    require_value(reader, "attention_bias", False)
    require_value(reader, "sliding_window", None)
    if reader.values.get("moe_latent_size") is not None and reader.flag("mlp_bias", False):
        raise reader.bad("mlp_bias", "false, as moe_latent_size is set")
    require_value(reader, "n_shared_experts", 1)


def _without_positions(dense: ModelSpec) -> AttentionSpec:
    attention = dense.layers[0].mixer
    assert isinstance(attention, AttentionSpec)
    return replace(attention, rope=None)


def _read_mamba(reader: ConfigReader, eps: float) -> MambaSpec:
    has_bias = reader.flag("use_bias", False)
    spec = MambaSpec(
        heads=reader.integer("mamba_num_heads", 128),
        head_size=reader.integer("mamba_head_dim", 64),
        state_size=reader.integer("ssm_state_size", 128),
        groups=reader.integer("n_groups", 8),
        kernel=reader.integer("conv_kernel", 4, minimum=2),
        has_conv_bias=reader.flag("use_conv_bias", True),
        has_input_bias=has_bias,
        has_output_bias=has_bias,
        norm_eps=eps,
    )
    require_groups(reader, spec, ("mamba_num_heads", "n_groups"))
    return spec


def _read_mlp(reader: ConfigReader, width: str) -> DenseSpec:
    return DenseSpec(reader.integer(width), "relu2", has_bias=reader.flag("mlp_bias", False))


def _read_mixture(reader: ConfigReader) -> MoeSpec:
    experts = read_experts(reader, "n_routed_experts", default=8)
    chosen = read_chosen(reader, experts, 2)
    router = read_deepseek_router(reader, experts, chosen)
    return MoeSpec(
        router,
        reader.integer("moe_intermediate_size"),
        "relu2",
        shared=_read_mlp(reader, "moe_shared_expert_intermediate_size"),
        latent=reader.optional_integer("moe_latent_size", minimum=1),
    )


_MODULE = "mixer"
_NAMES = DecoderNames("embeddings", "norm", "norm", "norm_f")
_EXPERTS = ExpertNames(_MODULE)


def nemotron_weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare the weights: whatever a layer has is called ``mixer``."""
    kinds: dict[type[Any], DeclareLayer] = {
        AttentionSpec: partial(attention_weights, module=_MODULE),
        MambaSpec: partial(mamba_weights, module=_MODULE),
        DenseSpec: partial(dense_weights, module=_MODULE),
        MoeSpec: partial(moe_weights, names=_EXPERTS),
    }
    return decoder_weights(spec, kinds, _NAMES)
