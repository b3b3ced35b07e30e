"""Published mixtures of experts by name, as :mod:`.presets` has other models.

Sources: ``config.json`` of Qwen/Qwen3-30B-A3B, mistralai/Mixtral-8x7B-v0.1 and zai-org/GLM-4.5-Air.
"""

from __future__ import annotations

Config = dict[str, object]

_SHARED: Config = {"hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False}

MIXTURES: dict[str, Config] = {
    "qwen3-30b-a3b": {
        **_SHARED,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
    "mixtral-8x7b": {
        **_SHARED,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "glm-4.5-air": {
        **_SHARED,
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": True,
        "hidden_size": 4096,
        "num_hidden_layers": 46,
        "num_nextn_predict_layers": 1,
        "intermediate_size": 10944,
        "vocab_size": 151552,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_qk_norm": False,
        "partial_rotary_factor": 0.5,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "eos_token_id": [151329, 151336, 151338],
    },
}
