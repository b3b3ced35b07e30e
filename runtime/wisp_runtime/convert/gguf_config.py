"""``config.json`` and ``generation_config.json`` from GGUF metadata, with Hugging Face's keys."""

from __future__ import annotations

import numpy as np

from wisp_runtime.convert.gguf_file import GGUFFile
from wisp_runtime.errors import ModelUnsupported

ARCHITECTURES = ("llama",)


def config(source: GGUFFile, dtype: str) -> dict[str, object]:
    """Return ``config.json`` of a Llama-like model.

    Args:
        source: the GGUF file.
        dtype: dtype of the written weights, ``BF16`` or ``F32``.

    Raises:
        ModelUnsupported: another architecture, or an unsupported scaling of positions.
    """
    architecture = source.require("general.architecture", str)
    if architecture not in ARCHITECTURES:
        raise ModelUnsupported(
            f"{source.path}: the architecture {architecture!r} cannot be converted; only "
            f"{', '.join(ARCHITECTURES)} can. Use the repository with the original safetensors weights."
        )
    hidden, heads = _integer(source, "embedding_length"), _integer(source, "attention.head_count")
    head_size = source.get("llama.attention.key_length", int) or hidden // heads
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _integer(source, "feed_forward_length"),
        "num_hidden_layers": _integer(source, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.get("llama.attention.head_count_kv", int, heads),
        "head_dim": head_size,
        "max_position_embeddings": _integer(source, "context_length"),
        "rms_norm_eps": _shortest(source.require("llama.attention.layer_norm_rms_epsilon", float)),
        **_rope(source, head_size),
        "vocab_size": _vocab(source),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in source.tensors,
        "torch_dtype": {"BF16": "bfloat16", "F32": "float32"}[dtype],
        **special_token_ids(source),
    }


def generation_config(source: GGUFFile) -> dict[str, object]:
    """Return ``generation_config.json``: the tokens that begin a sequence, and all that end one."""
    names = ("eos", "eot", "eom")  # end of the text, of a turn, of a message
    ends = (source.get(f"tokenizer.ggml.{name}_token_id", int) for name in names)
    unique = dict.fromkeys(token for token in ends if token is not None)
    listed = {"eos_token_id": list(unique)} if len(unique) > 1 else {}
    return {**special_token_ids(source), **listed}


def special_token_ids(source: GGUFFile) -> dict[str, int]:
    """Return the ids of the file's special tokens, as ``bos_token_id`` and so on."""
    named = {"bos": "bos", "eos": "eos", "padding": "pad"}
    ids = {ours: source.get(f"tokenizer.ggml.{theirs}_token_id", int) for theirs, ours in named.items()}
    return {f"{name}_token_id": value for name, value in ids.items() if value is not None}


def _integer(source: GGUFFile, key: str) -> int:
    value = source.require(f"llama.{key}", int)
    if value < 1:
        raise ModelUnsupported(
            f"{source.path}: llama.{key} is {value}; expected at least 1. Use another file."
        )
    return value


def _vocab(source: GGUFFile) -> int:
    embeddings = source.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ModelUnsupported(
            f"{source.path} has no matrix token_embd.weight; it cannot be converted without. "
            "Use another file."
        )
    return int(embeddings.shape[1])


def _rope(source: GGUFFile, head_size: int) -> dict[str, object]:
    """Return the RoPE keys, for transformers before and after version 5."""
    rotary_size = source.get("llama.rope.dimension_count", int, head_size)
    scaling = source.get("llama.rope.scaling.type", str, "none")
    if rotary_size != head_size or scaling != "none" or "rope_freqs.weight" in source.tensors:
        raise ModelUnsupported(
            f"{source.path}: its rotary embedding is scaled or partial, which is not converted. "
            "Use the repository with the original safetensors weights."
        )
    theta = _shortest(source.get("llama.rope.freq_base", float) or 10000.0)
    return {"rope_theta": theta, "rope_parameters": {"rope_theta": theta, "rope_type": "default"}}


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
