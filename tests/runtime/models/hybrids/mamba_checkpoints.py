"""Small checkpoints of hybrids of Mamba-2: each family with its switches."""

from __future__ import annotations

import json
import math

import numpy as np
from safetensors.numpy import save_file

from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors

SHARED = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
NEMOTRON = SHARED | {
    "architectures": ["NemotronHForCausalLM"],
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "layer_norm_epsilon": 1e-5,
    "time_step_limit": [0.0, math.inf],
}
GRANITE = SHARED | {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 48,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "embedding_multiplier": 5,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}
FALCON = SHARED | {
    "architectures": ["FalconH1ForCausalLM"],
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.7,
    "key_multiplier": 0.8,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 0.6],
    "mlp_multipliers": [0.8, 0.5],
}
RELU2_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
CONFIGS = {
    "nemotron_h": NEMOTRON | {"hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5},
    "nemotron_h, experts": NEMOTRON
    | RELU2_EXPERTS
    | {"hybrid_override_pattern": "MEM*E", "num_hidden_layers": 5},
    "nemotron_h, latent experts": NEMOTRON
    | RELU2_EXPERTS
    | {"hybrid_override_pattern": "ME*ME", "num_hidden_layers": 5, "moe_latent_size": 16},
    "granitemoehybrid": GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 2},
    "granitemoehybrid, dense": GRANITE | {"num_local_experts": 0, "position_embedding_type": "rope"},
    "falcon_h1": FALCON,
    "falcon_h1, normed": FALCON | {"mamba_rms_norm": True, "mamba_n_groups": 3, "tie_word_embeddings": True},
}


MEANS = {
    "dt_bias": (-2.0, 0.3),
    "A_log": (-2.5, 1.2),
    "correction_bias": (0.0, 0.3),
    ".bias": (0.0, 0.3),
}
"""Mean and deviation of vectors; of others 1 and 0.3."""


def write(folder, config):
    """Write a random model whose states last for some ten tokens in one head, for hundreds in another."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    random, tensors = np.random.default_rng(7), {}
    for tensor in expected_tensors(parse_config(config)):
        values = random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])
        if len(tensor.shape) == 1:
            ending = next((ending for ending in MEANS if tensor.name.endswith(ending)), "")
            mean, deviation = MEANS.get(ending, (1.0, 0.3))
            values = mean + deviation * random.standard_normal(tensor.shape)
        tensors[tensor.name] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder
