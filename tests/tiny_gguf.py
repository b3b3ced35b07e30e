"""A GGUF file of a tiny model, written by the gguf library."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from tokenizers import pre_tokenizers

LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, HEAD_SIZE = 2, 64, 96, 4, 2, 16
EXPERTS = 4
SPECIAL = ["<|end|>", "<|begin|>"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o"]
TOKENS = [*SPECIAL, *ALPHABET, "he", "ll", "hell", "hello"]
HALVES = {
    **{"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82)},
    **{"Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,)},
    **{"IQ3_S": (0,), "IQ1_S": (0,), "MXFP4": (), "NVFP4": ()},
}
"""Offsets of the float16 scales in a block; IQ1_M's is in nibbles of four words."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the tiny model; ``WIDE`` has rows of whole blocks of 256."""

    hidden: int = HIDDEN
    mlp: int = MLP
    head_size: int = HEAD_SIZE


WIDE = Sizes(256, 512, 64)


def random_blocks(kind, rows, weights, seed=3):
    """Return random blocks ``[rows, bytes]`` of a type, their scales between -2 and 2."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows, weights // block, size), dtype=np.uint8)
    if kind == "IQ1_M":
        raw[..., 55] &= 0x3F  # the uppermost nibble of the scale
    for at in HALVES.get(kind, ()):
        raw[..., at + 1] &= 0xBF  # the exponent's uppermost bit
    if kind == "MXFP4":
        raw[..., 0] = 120 + raw[..., 0] % 8
    return raw.reshape(rows, -1)


def write_gguf(
    path, *, kind=gguf.GGMLQuantizationType.F32, architecture="llama", change=None, ends=None, **options
):
    """Write a tiny model; return its tensors as they were before quantization.

    ``options``: ``sizes``; ``kinds``, types of tensors by a part of their name, of random blocks; ``fields``,
    more metadata; ``more``, more tensors; ``without``, names of tensors to leave out.
    """
    sizes = options.get("sizes", Sizes())
    writer = gguf.GGUFWriter(path, architecture)
    fields = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.mlp,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": sizes.head_size,
    }
    if architecture == "qwen3moe":
        fields |= {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": sizes.mlp}
    for key, value in fields.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in options.get("fields", {}).items():
        kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        kinds.get(type(value), writer.add_float32)(key, value)
    text = {"model": "gpt2", "pre": "smollm", "tokens": TOKENS, "merges": MERGES} | (change or {})
    writer.add_tokenizer_model(text["model"])
    writer.add_tokenizer_pre(text["pre"])
    writer.add_token_list(text["tokens"])
    writer.add_token_types([3, 3, *[1] * (len(text["tokens"]) - 2)])
    writer.add_token_merges(text["merges"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    for name, token in (ends or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.add_chat_template("{{ messages[0].content }}")
    tensors = _tensors(sizes, architecture) | options.get("more", {})
    for name in options.get("without", ()):
        del tensors[name]
    for name, values in tensors.items():
        _add(writer, name, values, kind, options.get("kinds", {}))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _tensors(sizes, architecture):
    random = np.random.default_rng(5)
    query, key = HEADS * sizes.head_size, KV_HEADS * sizes.head_size
    shapes = {"attn_q": (query, sizes.hidden), "attn_k": (key, sizes.hidden), "attn_v": (key, sizes.hidden)}
    shapes |= {"attn_output": (sizes.hidden, query), "ffn_down": (sizes.hidden, sizes.mlp)}
    shapes |= {"ffn_gate": (sizes.mlp, sizes.hidden), "ffn_up": (sizes.mlp, sizes.hidden)}
    if architecture == "qwen3moe":
        shapes = {name: shape for name, shape in shapes.items() if "ffn" not in name} | _expert_shapes(sizes)
    tensors = {"token_embd.weight": random.standard_normal((len(TOKENS), sizes.hidden)).astype(np.float32)}
    tensors["output_norm.weight"] = np.ones(sizes.hidden, np.float32)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = random.random(sizes.hidden, np.float32)
        for name, shape in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = random.standard_normal(shape).astype(np.float32)
        for name, width in _vectors(sizes, architecture).items():
            tensors[f"blk.{layer}.{name}"] = random.random(width, np.float32)
    return tensors


def _vectors(sizes, architecture):
    """Return the sizes of a family's own norms and biases."""
    vectors = {}
    if architecture == "gemma3":
        vectors |= dict.fromkeys(("post_attention_norm.weight", "post_ffw_norm.weight"), sizes.hidden)
    if architecture in ("gemma3", "qwen3", "qwen3moe"):
        vectors |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), sizes.head_size)
    if architecture == "qwen2":
        key = KV_HEADS * sizes.head_size
        vectors |= {"attn_q.bias": HEADS * sizes.head_size, "attn_k.bias": key, "attn_v.bias": key}
    return vectors


def _expert_shapes(sizes):
    shapes = {"ffn_gate_inp": (EXPERTS, sizes.hidden), "ffn_down_exps": (EXPERTS, sizes.hidden, sizes.mlp)}
    return shapes | dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), (EXPERTS, sizes.mlp, sizes.hidden))


def _add(writer, name, values, kind, kinds):
    """Add a tensor: random blocks where ``kinds`` names it, else of ``kind``; vectors as they are."""
    own = next((own for part, own in kinds.items() if values.ndim > 1 and part in name), None)
    if own is not None:
        blocks = random_blocks(own, values.size // values.shape[-1], values.shape[-1], seed=len(name))
        blocks = blocks.reshape(*values.shape[:-1], -1)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[own])
    elif values.ndim == 1 or "gate_inp" in name or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
