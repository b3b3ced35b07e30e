"""Llama, and models published under its architecture (SmolLM2, Yi, …)."""

from __future__ import annotations

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.model import ModelSpec

ARCHITECTURE = "LlamaForCausalLM"


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Llama's ``config.json``."""
    attention = reader.flag("attention_bias", False)
    biases = Biases(qkv=attention, output=attention, mlp=reader.flag("mlp_bias", False))
    return read_dense_decoder(
        reader, ARCHITECTURE, "llama", biases=biases, defaults=Defaults(bos=(1,), eos=(2,))
    )
