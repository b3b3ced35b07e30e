"""Small 16-bit checkpoints to quantize, and the weights that a checkpoint loads as."""

import json
from string import ascii_letters

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from wisp_plan.checkpoint.directory import read_directory
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.weights.upload import STORED

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 70,
}


def write_checkpoint(folder, dtype=ml_dtypes.bfloat16, seed=3, **config):
    """Write a small model; return its tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    write_tokenizer(folder / "tokenizer.json")
    random, tensors = np.random.default_rng(seed), {}
    for tensor in expected_tensors(read_spec(folder)):
        mean = 1 if tensor.role == "norm" else 0
        tensors[tensor.name] = (mean + 0.1 * random.standard_normal(tensor.shape)).astype(dtype)
    save_file(tensors, folder / "model.safetensors")
    return tensors


def write_tokenizer(path):
    """Write a tokenizer whose tokens are characters."""
    letters = dict(zip(ascii_letters + " .,\n\"'", range(1, CONFIG["vocab_size"]), strict=False))
    made = Tokenizer(models.WordLevel({"?": 0} | letters, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.save(str(path))


def loaded_rows(folder, name="layers.0.qkv.weight"):
    """Return a weight as the CPU's engine holds it, in float32."""
    ops = CpuOps(threads=1)
    held = load_model(folder, read_spec(folder), ops).weights[name]
    return ops.embedding(np.arange(held.outputs), held)


def tensors_of(folder):
    """Read all tensors; the safetensors library has no NumPy dtype for E4M3."""
    dtypes = STORED | {"I64": np.dtype(np.int64)}
    return {
        tensor.name: np.frombuffer(
            (folder / tensor.file).read_bytes()[tensor.start : tensor.end], dtypes[tensor.dtype]
        ).reshape(tensor.shape)
        for tensor in read_directory(folder)
    }
