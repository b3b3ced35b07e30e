"""Checkpoints whose weights are a hole in a file: only headers are read of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wisp_plan.checkpoint.header import DTYPE_BITS
from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write a bf16 checkpoint of these sizes into a folder that is there."""
    tensors = expected_tensors(parse_config(config))
    return write_tensors(folder, config, ((tensor.name, "BF16", tensor.shape) for tensor in tensors))


def write_tensors(
    folder: Path, config: dict[str, Any], tensors: Iterable[tuple[str, str, tuple[int, ...]]]
) -> Path:
    """Write a checkpoint of these tensors: name, dtype and shape."""
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
