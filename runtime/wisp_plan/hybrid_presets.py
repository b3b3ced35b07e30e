"""Published hybrids of Gated DeltaNet by name, as :mod:`.presets` has other models.

Sources: ``config.json`` of Qwen/Qwen3.5-9B, whose text model is given here alone; Qwen/Qwen3.6-27B, whose
sizes Qwen3.8-27B has too.
"""

from __future__ import annotations

Config = dict[str, object]


def _qwen35(hidden: int, layers: int, inner: int, heads: tuple[int, int], value_heads: int) -> Config:
    """Make a config of dense Qwen3.5: (query heads, KV heads), value heads of Gated DeltaNet."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "vocab_size": 248320,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
        "eos_token_id": 248044,
        "torch_dtype": "bfloat16",
    }


HYBRIDS: dict[str, Config] = {
    "qwen3.8-27b": _qwen35(5120, 64, 17408, (24, 4), value_heads=48),
    "qwen3.5-9b": _qwen35(4096, 32, 12288, (16, 4), value_heads=32),
}
"""Config by name."""
