"""Qwen2 and Qwen2.5: biases on Q, K and V."""

from __future__ import annotations

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.windows import read_qwen_windows
from wisp_plan.spec.model import ModelSpec

ARCHITECTURE = "Qwen2ForCausalLM"


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Qwen2's ``config.json``."""
    return read_dense_decoder(
        reader,
        ARCHITECTURE,
        "qwen2",
        biases=Biases(qkv=True),
        windows=read_qwen_windows,
        defaults=Defaults(kv_heads=32),
    )
