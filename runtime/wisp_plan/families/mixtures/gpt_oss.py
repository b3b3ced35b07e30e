"""gpt-oss: attention with sinks, windows on every other layer, experts with biases and a clamped SwiGLU.

A layer's experts are in one tensor: ``experts.gate_up_proj [E, D, 2 F]`` and ``down_proj [E, F, D]`` in bf16,
or their transposes as ``…_blocks`` and ``…_scales`` of MXFP4. Gate and up alternate: 2 i is gate i, 2 i + 1
is up i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.hugging_face import decoder_weights
from wisp_plan.families.mixtures.experts import read_chosen, read_experts
from wisp_plan.families.mixtures.weights import ExpertNames, router_weights
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.windows import FULL, SLIDING, Windows, read_layer_types, windows_of
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.layer import LayerSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.weight import GateUpRows, WeightSource, WeightSpec

ARCHITECTURE = "GptOssForCausalLM"
FAMILY = "gpt_oss"

_NAMES = ExpertNames(router="router")
_ACTIVATION: Final = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""Constants of the activation that there is code for."""

_DEFAULTS: Final[dict[str, object]] = {
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
}
_ROPE: Final[dict[str, object]] = {
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
}


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a gpt-oss's ``config.json``.

    Raises:
        ConfigInvalid: a key is missing, mistyped, impossible, or the activation is another.
    """
    reader = reader.with_defaults(_DEFAULTS if _has_rope(reader) else _DEFAULTS | _ROPE)
    has_bias = reader.flag("attention_bias", True)
    spec = read_dense_decoder(
        reader,
        ARCHITECTURE,
        FAMILY,
        biases=Biases(qkv=has_bias, output=has_bias),
        windows=_read_windows,
        defaults=Defaults(kv_heads=8, head_size=64),
    )
    experts = _read_experts(reader)
    return replace(spec, layers=tuple(_with_experts(layer, experts) for layer in spec.layers))


def _has_rope(reader: ConfigReader) -> bool:
    return any(reader.values.get(key) is not None for key in ("rope_parameters", "rope_scaling"))


def _read_windows(reader: ConfigReader, layers: int, max_context: int) -> Windows:
    usual = [FULL if index % 2 else SLIDING for index in range(layers)]
    window = reader.optional_integer("sliding_window", 128, minimum=1)
    return windows_of(read_layer_types(reader, usual), window, max_context)


def _read_experts(reader: ConfigReader) -> MoeSpec:
    for key, computed in _ACTIVATION.items():
        if reader.number(key, computed) != computed:
            raise reader.bad(key, f"{computed:g}, the only one that there is code for")
    experts = read_experts(reader, "num_local_experts", "num_experts", default=128)
    chosen = read_chosen(reader, experts, 4)
    router = RouterSpec(experts, chosen, has_bias=True)
    return MoeSpec(router, reader.integer("intermediate_size"), "clamped_swiglu", has_bias=True)


def _with_experts(layer: LayerSpec, experts: MoeSpec) -> LayerSpec:
    assert isinstance(layer.mixer, AttentionSpec)
    return replace(layer, mixer=replace(layer.mixer, has_sinks=True), ffn=experts)


def weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare the weights of a gpt-oss."""
    return decoder_weights(spec, {MoeSpec: mixture_weights})


def mixture_weights(spec: MoeSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    """Declare the router and experts of a layer, which is ``name`` here and ``tensor`` in the checkpoint."""
    block = f"{tensor}.mlp"
    yield from router_weights(spec, hidden, name, (block,), _NAMES)
    experts, inner = spec.router.experts, spec.inner
    gate_up = f"{name}.experts.gate_up"
    stored = f"{block}.experts.gate_up_proj"
    shape, rows = (experts, 2 * inner, hidden), GateUpRows()
    yield WeightSpec(
        f"{gate_up}.weight", shape, _alternating(stored, shape), "projection", shard_axis=1, rows=rows
    )
    biases = _alternating_biases(f"{stored}_bias", experts, inner)
    yield WeightSpec(f"{gate_up}.bias", shape[:2], biases, "bias", shard_axis=1, rows=rows)
    down, stored = f"{name}.experts.down", f"{block}.experts.down_proj"
    every = range(experts), range(hidden), range(inner)
    source = WeightSource(stored, (experts, inner, hidden), every, (0, 0, 0), is_transposed=True)
    yield WeightSpec(f"{down}.weight", (experts, hidden, inner), (source,), "projection", shard_axis=2)
    bias = WeightSource(f"{stored}_bias", (experts, hidden), every[:2], (0, 0))
    yield WeightSpec(f"{down}.bias", (experts, hidden), (bias,), "bias", is_on_first_rank=True)


def _alternating(tensor: str, shape: tuple[int, int, int]) -> tuple[WeightSource, ...]:
    """Return the sources of gate and of up, whose rows of every expert alternate."""
    experts, rows, hidden = shape
    return tuple(
        WeightSource(
            tensor,
            (experts, hidden, rows),
            (range(experts), range(part, rows, 2), range(hidden)),
            (0, part * rows // 2, 0),
            is_transposed=True,
        )
        for part in range(2)
    )


def _alternating_biases(tensor: str, experts: int, inner: int) -> tuple[WeightSource, ...]:
    """Return the sources of the biases of each expert's gate, and of its up."""
    size = 2 * inner
    return tuple(
        WeightSource(
            tensor,
            (experts, size),
            (range(expert * size + part, (expert + 1) * size, 2),),
            (expert, part * inner),
            view=(experts * size,),
        )
        for expert, part in product(range(experts), range(2))
    )
