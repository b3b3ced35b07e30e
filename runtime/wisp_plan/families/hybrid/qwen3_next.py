"""Qwen3-Next: projections of Gated DeltaNet stored a key head at a time, mixtures of experts."""

from __future__ import annotations

from wisp_plan.families.dense import Defaults
from wisp_plan.families.hybrid.delta_net_decoder import read_delta_net_decoder
from wisp_plan.families.mixtures.experts import with_mixtures
from wisp_plan.families.mixtures.qwen_experts import read_shared_mixture, read_sparse_layers
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.model import ModelSpec

ARCHITECTURE = "Qwen3NextForCausalLM"


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Qwen3-Next's ``config.json``."""
    spec = read_delta_net_decoder(
        reader,
        ARCHITECTURE,
        "qwen3_next",
        defaults=Defaults(kv_heads=2, head_size=256, inner=5632),
        is_grouped=True,
    )
    normalizes = reader.flag("norm_topk_prob", True)
    moe = read_shared_mixture(reader, experts=512, chosen=10, inner=512, normalizes=normalizes)
    return with_mixtures(spec, moe, read_sparse_layers(reader, len(spec.layers)))
