"""Quantized checkpoints served on the CPU: every format, and a method of our own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from quantized_checkpoints import FORMATS
from safetensors.numpy import save_file

from wisp_plan.quantization.config import METHODS, Method
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.stored_format import VALUES, StoredPart
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.batch import Batch
from wisp_runtime.layers.cache import kv_cache
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps

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
OPS = CpuOps(threads=1)
TOKENS = np.array([3, 14, 15, 9, 26, 5], np.int32)
OWN = Scheme("own", "int8", 1, 0)
OWN_METHOD = Method(
    read=lambda config: Quantization("own", (Rule(LayerNames((EVERY_LAYER,)), OWN),)),
    parts=lambda scheme: (
        StoredPart(VALUES, "{weight}", ("I8",)),
        StoredPart("scale", "{layer}.step", ("F32",), columns=0),
    ),
)


def write_own(random, *shape):
    values, step = random.integers(-9, 9, shape).astype(np.int8), random.random((shape[0], 1), np.float32)
    return {".weight": values, ".step": step}, values * step


@pytest.fixture
def own_method(monkeypatch):
    monkeypatch.setitem(METHODS, "own", OWN_METHOD)


def folders(tmp_path, section, write):
    """Write a quantized checkpoint, and one of its dequantized weights; return both folders."""
    numbers, stored, plain = np.random.default_rng(1), {}, {}
    for folder, config in ((tmp_path / "stored", {"quantization_config": section}), (tmp_path / "plain", {})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG | config))
    for tensor in expected_tensors(read_spec(tmp_path / "plain")):
        if tensor.role == "projection":
            layer = tensor.name.removesuffix(".weight")
            parts, plain[tensor.name] = write(numbers, *tensor.shape)
            stored |= {layer + suffix: values for suffix, values in parts.items()}
        else:
            stored[tensor.name] = plain[tensor.name] = numbers.standard_normal(tensor.shape, np.float32)
    save_file(stored, tmp_path / "stored" / "model.safetensors")
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    return tmp_path / "stored", tmp_path / "plain"


def logits(folder):
    spec, count = read_spec(folder), len(TOKENS)
    cache = kv_cache(*(OPS.kv_arena((2, 1, 2, 16, 16)) for _ in range(2)), 16)
    batch = Batch(
        tokens=TOKENS,
        positions=np.arange(count, dtype=np.int32),
        slots=np.arange(count),
        query_starts=np.array([0, count], np.int32),
        context_lengths=np.array([count], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logit_rows=np.arange(count),
        query_starts_host=(0, count),
        context_lengths_host=(count,),
    )
    return load_model(folder, spec, OPS).forward(batch, cache).logits


@pytest.mark.usefixtures("own_method")
@pytest.mark.parametrize("name", ["own", *FORMATS])
def test_a_quantized_checkpoint_gives_the_logits_of_its_dequantized_weights(tmp_path, name):
    section, write = FORMATS.get(name, ({"quant_method": "own"}, write_own))
    quantized_logits, expected = map(logits, folders(tmp_path, section, write))
    np.testing.assert_array_equal(quantized_logits, expected)
    assert np.ptp(expected) > 1
