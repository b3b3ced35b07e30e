"""A GGUF file of a tiny model, written by the gguf library."""

from __future__ import annotations

import gguf
import numpy as np
from tokenizers import pre_tokenizers

LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, HEAD_SIZE = 2, 64, 96, 4, 2, 16
SPECIAL = ["<|end|>", "<|begin|>"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o"]
TOKENS = [*SPECIAL, *ALPHABET, "he", "ll", "hell", "hello"]
WIDTHS = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (32, HIDDEN), "attn_v": (32, HIDDEN)}
WIDTHS |= {"attn_output": (HIDDEN, HIDDEN)}
WIDTHS |= {"ffn_gate": (MLP, HIDDEN), "ffn_up": (MLP, HIDDEN), "ffn_down": (HIDDEN, MLP)}


def write_gguf(path, *, kind=gguf.GGMLQuantizationType.F32, architecture="llama", change=None, ends=None):
    """Write a tiny model; return its tensors as they were before quantisation."""
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, architecture)
    fields = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": HEAD_SIZE,
    }
    for key, value in fields.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
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
    tensors = {"token_embd.weight": random.standard_normal((len(TOKENS), HIDDEN)).astype(np.float32)}
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = random.random(HIDDEN, np.float32)
        for name, shape in WIDTHS.items():
            tensors[f"blk.{layer}.{name}.weight"] = random.standard_normal(shape).astype(np.float32)
    for name, values in tensors.items():
        if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
