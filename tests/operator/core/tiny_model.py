"""A model of two layers: its config, its safetensors file of zeros, and a resource that names it."""

from __future__ import annotations

import json
from typing import Any

from wisp_operator import api
from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
}
REPO = "acme/tiny"


def checkpoint() -> bytes:
    """A complete safetensors file for CONFIG, its weights zero bytes; only its header is ever read."""
    entries: dict[str, Any] = {}
    position = 0
    for tensor in expected_tensors(parse_config(CONFIG)):
        size = 2
        for length in tensor.shape:
            size *= length
        entries[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes(position)


WEIGHTS = checkpoint()


def model(uri: str, **spec: Any) -> api.InferenceModel:
    return api.parse(
        {
            "apiVersion": api.API_VERSION,
            "kind": api.KIND,
            "metadata": {"name": "tiny"},
            "spec": {"model": {"uri": uri}, **spec},
        }
    )
