"""Mixtral: Mistral whose MLPs are mixtures of experts, named ``block_sparse_moe``, and ``w1`` to ``w3``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.hugging_face import decoder_weights
from wisp_plan.families.mixtures.experts import read_chosen, read_experts, with_mixtures
from wisp_plan.families.mixtures.weights import ExpertNames, moe_weights
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.windows import Windows, window_of_all_layers
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.weight import WeightSpec

ARCHITECTURE = "MixtralForCausalLM"
FAMILY = "mixtral"

_NAMES = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2", block_in_one="mlp")
_ROPE_THETA = 1e6


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Mixtral's ``config.json``."""
    reader = reader.with_defaults({"rope_theta": _ROPE_THETA, "rms_norm_eps": 1e-5})
    spec = read_dense_decoder(
        reader,
        ARCHITECTURE,
        FAMILY,
        biases=Biases(),
        windows=_read_windows,
        defaults=Defaults(kv_heads=8, bos=(1,), eos=(2,)),
    )
    experts = read_experts(reader, "num_local_experts", "num_experts", default=8)
    router = RouterSpec(experts, read_chosen(reader, experts, 2))
    moe = MoeSpec(router, reader.integer("intermediate_size"))
    return with_mixtures(spec, moe, range(len(spec.layers)))


def mixtral_weights(spec: ModelSpec) -> Iterator[WeightSpec]:
    """Declare a Mixtral's weights."""
    return decoder_weights(spec, {MoeSpec: partial(moe_weights, names=_NAMES)})


def _read_windows(reader: ConfigReader, layers: int, max_context: int) -> Windows:
    window = reader.optional_integer("sliding_window", minimum=1)
    return window_of_all_layers(reader, window, layers, max_context)
