"""Mistral: Llama without biases, with one sliding window for all layers."""

from __future__ import annotations

from wisp_plan.families.dense import Biases, Defaults, read_dense_decoder
from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.windows import Windows, window_of_all_layers
from wisp_plan.spec.model import ModelSpec

ARCHITECTURE = "MistralForCausalLM"


def translate(reader: ConfigReader) -> ModelSpec:
    """Read a Mistral's ``config.json``."""
    return read_dense_decoder(
        reader,
        ARCHITECTURE,
        "mistral",
        biases=Biases(),
        windows=_read_windows,
        defaults=Defaults(kv_heads=8, bos=(1,), eos=(2,)),
    )


def _read_windows(reader: ConfigReader, layers: int, max_context: int) -> Windows:
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    return window_of_all_layers(reader, window, layers, max_context)
