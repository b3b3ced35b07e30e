"""Gemma 3 against its formulas in float64, and out of GGUF against the converted folder."""

import json

import numpy as np
from gguf import GGMLQuantizationType
from safetensors.numpy import save_file
from tiny_gguf import HEAD_SIZE, write_gguf  # tests/

from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.convert.gguf import convert
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.models.single_sequence import blocks_of, sequence_batch
from wisp_runtime.ops.cpu.ops import CpuOps

OPS = CpuOps(threads=1)
CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 25,
    "sliding_window": 6,
    "sliding_window_pattern": 3,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "max_position_embeddings": 128,
    "vocab_size": 70,
    "dtype": "float32",
}
TOKENS = np.random.default_rng(3).integers(0, 70, 21)
FIELDS = {"gemma3.attention.sliding_window": 6, "gemma3.attention.key_length": HEAD_SIZE}


def logits(path, tokens=TOKENS):
    spec = read_spec(path)
    cache = allocate_blocks(spec, OPS, blocks=blocks_of(128), block_tokens=16, kv="float32")
    batch = sequence_batch(tokens.tolist(), 0, 128, range(len(tokens)), groups=len(cache.groups))
    return load_model(path, spec, OPS).forward(batch, cache).logits


def norm(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * (1 + weight)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(x, own, *, is_full):
    n = len(x)
    q, k, v = ((x @ own[f"self_attn.{part}_proj.weight"].T).reshape(n, -1, 16) for part in "qkv")
    angles = np.arange(n)[:, None, None] * (1e6 if is_full else 1e4) ** -(np.arange(8) / 8)
    turn = np.exp(1j * angles / (8 if is_full else 1))

    def rotated(heads, name):
        heads = norm(heads, own[f"self_attn.{name}_norm.weight"])
        pairs = (heads[..., :8] + 1j * heads[..., 8:]) * turn
        return np.concatenate([pairs.real, pairs.imag], axis=2)

    q, k, v = rotated(q, "q"), np.repeat(rotated(k, "k"), 2, axis=1), np.repeat(v, 2, axis=1)
    distance = np.arange(n)[:, None] - np.arange(n)
    seen = (distance >= 0) & (is_full | (distance < 6))
    scores = np.where(seen, np.einsum("nhd,mhd->hnm", q, k) / 5, -np.inf)
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    mixed = np.einsum("hnm,mhd->nhd", scores / scores.sum(axis=2, keepdims=True), v)
    return mixed.reshape(n, -1) @ own["self_attn.o_proj.weight"].T


def expected_logits(tensors):
    x = tensors["model.embed_tokens.weight"][TOKENS] * np.sqrt(32)
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if prefix in name}
        mixed = attention(norm(x, own["input_layernorm.weight"]), own, is_full=layer == 2)
        x = x + norm(mixed, own["post_attention_layernorm.weight"])
        h = norm(x, own["pre_feedforward_layernorm.weight"])
        inner = gelu(h @ own["mlp.gate_proj.weight"].T) * (h @ own["mlp.up_proj.weight"].T)
        x = x + norm(inner @ own["mlp.down_proj.weight"].T, own["post_feedforward_layernorm.weight"])
    return norm(x, tensors["model.norm.weight"]) @ tensors["model.embed_tokens.weight"].T


def test_logits_are_those_of_the_formulas(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(4)
    tensors = {
        tensor.name: 0.3 * random.standard_normal(tensor.shape, np.float32)
        for tensor in expected_tensors(read_spec(tmp_path))
    }
    save_file(tensors, tmp_path / "model.safetensors")
    expected = expected_logits({name: value.astype(np.float64) for name, value in tensors.items()})
    np.testing.assert_allclose(logits(tmp_path), expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def test_a_gguf_file_gives_the_logits_of_its_conversion(tmp_path):
    file = tmp_path / "m.gguf"
    written = write_gguf(file, architecture="gemma3", fields=FIELDS, kind=GGMLQuantizationType.F32)
    folder = convert(file, tmp_path / "out", dtype="f32").folder
    tokens = np.arange(2, 23)
    of_file, of_folder = logits(file, tokens), logits(folder, tokens)
    np.testing.assert_allclose(of_file, of_folder, rtol=0, atol=1e-4 * np.abs(of_file).max())
    assert read_spec(folder).layers[0].norms.is_zero_centred
    assert not read_spec(file).layers[0].norms.is_zero_centred
    assert written["output_norm.weight"].min() == 1  # stored one larger; 0 in the folder
