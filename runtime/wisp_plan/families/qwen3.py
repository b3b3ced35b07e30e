"""Qwen3: RMS norms on the heads of Q and K, heads of 128 channels unless said otherwise."""

from __future__ import annotations

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.windows import read_qwen_windows
from wisp_plan.spec.model import ModelSpec

ARCHITECTURE = "Qwen3ForCausalLM"


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Qwen3's ``config.json``."""
    attention = reader.flag("attention_bias", False)
    return read_dense_decoder(
        reader,
        ARCHITECTURE,
        "qwen3",
        biases=Biases(qkv=attention, output=attention),
        windows=read_qwen_windows,
        defaults=Defaults(kv_heads=32, head_size=128),
        has_qk_norm=True,
    )
