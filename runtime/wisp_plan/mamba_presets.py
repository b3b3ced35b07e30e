"""Published hybrids of Mamba-2 by name, as :mod:`.presets` has other models.

Sources: ``config.json`` of nvidia/NVIDIA-Nemotron-Nano-9B-v2, nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16,
ibm-granite/granite-4.0-h-350m, -h-tiny and -h-small, tiiuae/Falcon-H1-0.5B-Base.
"""

from __future__ import annotations

import math

Config = dict[str, object]


def _nemotron(
    pattern: str, hidden: int, heads: tuple[int, int], mamba: tuple[int, int], **more: object
) -> Config:
    """Make a config: (query heads, KV heads) of 128, (heads, head size) of Mamba-2."""
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "hidden_size": hidden,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 128,
        "mamba_num_heads": mamba[0],
        "mamba_head_dim": mamba[1],
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "use_bias": False,
        "mlp_bias": False,
        "attention_bias": False,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "time_step_limit": [0.0, math.inf],
        "time_step_min": 0.001,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 131072,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "bos_token_id": 1,
        "torch_dtype": "bfloat16",
        **more,
    }


_NEMOTRON_NANO_30B: Config = {
    "intermediate_size": 1856,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 262144,
    "eos_token_id": 2,
}


def _granite(
    hidden: int, layers: int, attention: tuple[int, ...], heads: tuple[int, int], **more: object
) -> Config:
    """Make a config: attention in those of ``layers`` layers, (query heads, KV heads)."""
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "layer_types": ["attention" if layer in attention else "mamba" for layer in range(layers)],
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "attention_bias": False,
        "position_embedding_type": "nope",
        "mamba_expand": 2,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "embedding_multiplier": 12,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0078125,
        "normalization_function": "rmsnorm",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "vocab_size": 100352,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "bos_token_id": 100257,
        "eos_token_id": 100257,
        "torch_dtype": "bfloat16",
        **more,
    }


_FALCON_H1: Config = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "num_hidden_layers": 36,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_d_ssm": 1536,
    "mamba_n_heads": 24,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": False,
    "embedding_multiplier": 5.656854249492381,
    "lm_head_multiplier": 0.0390625,
    "key_multiplier": 0.39062499999999994,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 0.9375,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.23570226039551587,
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000000000.0,
    "vocab_size": 32784,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 11,
    "torch_dtype": "bfloat16",
}

MAMBAS: dict[str, Config] = {
    "nemotron-nano-9b-v2": _nemotron(
        "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        4480,
        (40, 8),
        (128, 80),
        intermediate_size=15680,
        max_position_embeddings=131072,
        eos_token_id=12,
    ),
    "nemotron-3-nano-30b-a3b": _nemotron(
        "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 2688, (32, 2), (64, 64), **_NEMOTRON_NANO_30B
    ),
    "granite-4.0-h-350m": _granite(
        768,
        32,
        (10, 13, 17, 27),
        (12, 4),
        intermediate_size=2048,
        shared_intermediate_size=2048,
        num_local_experts=0,
        num_experts_per_tok=0,
        mamba_n_heads=48,
        mamba_d_head=32,
        attention_multiplier=0.015625,
        residual_multiplier=0.246,
        logits_scaling=3,
        max_position_embeddings=32768,
    ),
    "granite-4.0-h-tiny": _granite(
        1536,
        40,
        (5, 15, 25, 35),
        (12, 4),
        intermediate_size=512,
        shared_intermediate_size=1024,
        num_local_experts=64,
        num_experts_per_tok=6,
        mamba_n_heads=48,
        mamba_d_head=64,
        logits_scaling=6,
    ),
    "granite-4.0-h-small": _granite(
        4096,
        40,
        (5, 15, 25, 35),
        (32, 8),
        intermediate_size=768,
        shared_intermediate_size=1536,
        num_local_experts=72,
        num_experts_per_tok=10,
        mamba_n_heads=128,
        mamba_d_head=64,
        logits_scaling=16,
    ),
    "falcon-h1-0.5b": _FALCON_H1,
}
"""Config by name."""
