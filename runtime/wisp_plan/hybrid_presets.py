"""Published hybrids of Gated DeltaNet by name, as :mod:`.presets` has other models.

Sources: ``config.json`` of Qwen/Qwen3.5-9B and Qwen/Qwen3.6-35B-A3B, whose text models are given here alone;
Qwen/Qwen3.6-27B, whose sizes Qwen3.8-27B has too; Qwen/Qwen3-Next-80B-A3B-Instruct.
"""

from __future__ import annotations

Config = dict[str, object]


def _hybrid(architecture: str, sizes: tuple[int, int, int], heads: tuple[int, int]) -> Config:
    """Make a config of (hidden, layers, vocabulary) and (query heads, KV heads)."""
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": sizes[0],
        "num_hidden_layers": sizes[1],
        "vocab_size": sizes[2],
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _qwen35(kind: str, hidden: int, layers: int, heads: tuple[int, int]) -> Config:
    return _hybrid(f"Qwen3_5{kind}", (hidden, layers, 248320), heads) | {
        "model_type": f"qwen3_5_{kind.lower()}_text".replace("__", "_"),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "eos_token_id": 248044,
    }


def _experts(count: int, chosen: int) -> Config:
    """Return the keys of mixtures of ``count`` experts of 512 channels, and a shared one."""
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }


_NEXT = {
    "model_type": "qwen3_next",
    "intermediate_size": 5120,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

HYBRIDS: dict[str, Config] = {
    "qwen3.8-27b": _qwen35("", 5120, 64, (24, 4))
    | {"intermediate_size": 17408, "linear_num_value_heads": 48},
    "qwen3.5-9b": _qwen35("", 4096, 32, (16, 4)) | {"intermediate_size": 12288},
    "qwen3.6-35b-a3b": _qwen35("Moe", 2048, 40, (16, 2)) | _experts(256, 8),
    "qwen3-next-80b-a3b": _hybrid("Qwen3Next", (2048, 48, 151936), (16, 2)) | _NEXT | _experts(512, 10),
}
"""Config by name."""
