"""GLM-4.5 and 4.6: dense layers, then mixtures of experts with DeepSeek's router and a shared expert.

RoPE covers half of a head's channels. The layer behind the last, which drafts tokens, is not used.
"""

from __future__ import annotations

from wisp_plan.families.dense import Biases, read_dense_decoder
from wisp_plan.families.mixtures.experts import read_chosen, read_deepseek_router, read_experts, with_mixtures
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec

ARCHITECTURE = "Glm4MoeForCausalLM"

_DEFAULTS = {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5}


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a GLM-4.5's ``config.json``."""
    reader = reader.with_defaults(_DEFAULTS)
    spec = read_dense_decoder(
        reader,
        ARCHITECTURE,
        "glm4_moe",
        biases=Biases(qkv=reader.flag("attention_bias", False)),
        has_qk_norm=reader.flag("use_qk_norm", False),
    )
    dense, layers = reader.integer("first_k_dense_replace", 1, minimum=0), len(spec.layers)
    if dense >= layers:
        raise reader.bad("first_k_dense_replace", f"fewer dense layers than the {layers} that there are")
    return with_mixtures(spec, _read_mixture(reader), range(dense, layers))


def _read_mixture(reader: ConfigReader) -> MoeSpec:
    experts = read_experts(reader, "n_routed_experts", "num_local_experts", default=128)
    chosen, inner = read_chosen(reader, experts, 8), reader.integer("moe_intermediate_size", 1408)
    router = read_deepseek_router(reader, experts, chosen)
    return MoeSpec(router, inner, shared=DenseSpec(inner * reader.integer("n_shared_experts", 1)))
