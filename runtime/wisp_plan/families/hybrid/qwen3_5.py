"""Qwen3.5, which the checkpoints named Qwen3.6 and Qwen3.8-27B are too: dense, text alone or with images."""

from __future__ import annotations

from wisp_plan.families.dense import Defaults
from wisp_plan.families.hybrid.delta_net_decoder import read_delta_net_decoder
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.model import ModelSpec

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")


def translate(reader: ConfigReader) -> ModelSpec:
    """Read the text model of a Qwen3.5's ``config.json``."""
    return read_delta_net_decoder(
        reader,
        ARCHITECTURES[0],
        "qwen3_5",
        defaults=Defaults(kv_heads=4, head_size=256),
        is_grouped=False,
    )
