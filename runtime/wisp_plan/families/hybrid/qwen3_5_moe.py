"""Qwen3.5 with mixtures of experts in all layers, which the checkpoints named Qwen3.6 are too."""

from __future__ import annotations

from wisp_plan.families.dense import Defaults
from wisp_plan.families.hybrid.delta_net_decoder import read_delta_net_decoder
from wisp_plan.families.mixtures.experts import with_mixtures
from wisp_plan.families.mixtures.qwen_experts import read_shared_mixture
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.model import ModelSpec

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")


def translate(reader: ConfigReader) -> ModelSpec:
    """Read the text model of a Qwen3.5-MoE's ``config.json``, whatever its ``norm_topk_prob``."""
    moe = read_shared_mixture(reader, experts=256, chosen=8, inner=512, normalizes=True)
    spec = read_delta_net_decoder(
        reader,
        ARCHITECTURES[0],
        "qwen3_5_moe",
        defaults=Defaults(kv_heads=2, head_size=256, inner=moe.inner),
        is_grouped=False,
    )
    return with_mixtures(spec, moe, range(len(spec.layers)))
