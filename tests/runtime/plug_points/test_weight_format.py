"""A weight format of our own, int8 with a scale a row, read from a checkpoint and served on the CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from wisp_plan.weights.formats import FORMATS, VALUES, ScaleLayout, StoredPart, WeightFormat
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.batch import Batch
from wisp_runtime.layers.cache import kv_cache
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps

INT8_ROWS = WeightFormat(
    "int8-rows",
    bits=8,
    scales=ScaleLayout(rows=1, columns=0, dtype="f32"),
    stored=(
        StoredPart(VALUES, "{weight}", ("I8",)),
        StoredPart("scale", "{weight}_scale", ("F32",), columns=0),
    ),
    decode=lambda values, parts: values.astype(np.float32) * parts["scale"],
)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 70,
}
OPS = CpuOps(threads=1)
TOKENS = np.array([3, 14, 15, 9, 26, 5], np.int32)


def quantized(values):
    scale = np.abs(values).max(axis=1, keepdims=True) / 127
    return np.round(values / scale).astype(np.int8), scale


@pytest.fixture
def folders(tmp_path):
    """A checkpoint in int8, and one of its dequantized weights."""
    numbers, stored, plain = np.random.default_rng(1), {}, {}
    for folder in (tmp_path / "int8", tmp_path / "plain"):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
    for tensor in expected_tensors(read_spec(tmp_path / "int8")):
        values = numbers.standard_normal(tensor.shape, np.float32)
        if tensor.role == "projection":
            stored[tensor.name], stored[f"{tensor.name}_scale"] = values, scale = quantized(values)
            plain[tensor.name] = values.astype(np.float32) * scale
        else:
            stored[tensor.name] = plain[tensor.name] = values
    save_file(stored, tmp_path / "int8" / "model.safetensors")
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    return tmp_path / "int8", tmp_path / "plain"


def logits(folder):
    spec, count = read_spec(folder), len(TOKENS)
    cache = kv_cache(*(OPS.kv_arena((2, 1, 2, 16, 12)) for _ in range(2)), 16)
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


def test_a_registered_format_gives_the_logits_of_its_dequantized_weights(folders, monkeypatch):
    monkeypatch.setitem(FORMATS, INT8_ROWS.name, INT8_ROWS)
    quantized_logits, expected = map(logits, folders)
    np.testing.assert_array_equal(quantized_logits, expected)
    assert np.ptp(expected) > 1
