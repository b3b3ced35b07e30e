"""Qwen3-MoE: Qwen3's attention, and mixtures of experts in all layers or in some."""

from __future__ import annotations

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.mixtures.experts import with_mixtures
from wisp_plan.families.mixtures.qwen_experts import read_qwen_mixture, read_sparse_layers
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.windows import Windows, window_of_all_layers
from wisp_plan.spec.model import ModelSpec

ARCHITECTURE = "Qwen3MoeForCausalLM"


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Qwen3-MoE's ``config.json``."""
    attention = reader.flag("attention_bias", False)
    spec = read_dense_decoder(
        reader,
        ARCHITECTURE,
        "qwen3_moe",
        biases=Biases(qkv=attention, output=attention),
        windows=_read_windows,
        defaults=Defaults(kv_heads=4),
        has_qk_norm=True,
    )
    normalizes = reader.flag("norm_topk_prob", False)
    moe = read_qwen_mixture(reader, experts=128, chosen=8, inner=768, normalizes=normalizes)
    return with_mixtures(spec, moe, read_sparse_layers(reader, len(spec.layers)))


def _read_windows(reader: ConfigReader, layers: int, max_context: int) -> Windows:
    if not reader.flag("use_sliding_window", False):
        return (None,) * layers
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    return window_of_all_layers(reader, window, layers, max_context)
