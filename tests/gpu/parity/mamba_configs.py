"""Configs of hybrids of Mamba-2 to compare: each order of gate and norm, every factor, biases, experts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class MambaCase(NamedTuple):
    """A model to compare: its trait, architecture, hidden size, heads, MLP, vocabulary, and further keys."""

    trait: str
    architecture: str
    hidden: int
    heads: tuple[int, int, int]
    mlp: int
    vocab: int
    is_long: bool
    keys: dict[str, Any]


_NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "ssm_state_size": 128,
    "time_step_limit": [0.0, math.inf],
}
_GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "embedding_multiplier": 3,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.03125,
    "logits_scaling": 6,
}
_FALCON: dict[str, Any] = {
    "model_type": "falcon_h1",
    "mamba_d_state": 128,
    "rope_theta": 1e11,
    "embedding_multiplier": 5.656854249492381,
    "lm_head_multiplier": 0.0390625,
    "key_multiplier": 0.39062499999999994,
    "attention_in_multiplier": 1.25,
    "attention_out_multiplier": 0.9375,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.23570226039551587,
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    "mlp_multipliers": [0.8838834764831844, 0.5859375],
}


def _nemotron(pattern: str, heads: int, size: int, groups: int, **more: Any) -> dict[str, Any]:
    sizes = {"mamba_num_heads": heads, "mamba_head_dim": size, "n_groups": groups}
    layers = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
    return {**_NEMOTRON, **sizes, **layers, **more}


def _granite(heads: int, size: int, groups: int, **more: Any) -> dict[str, Any]:
    sizes = {"mamba_n_heads": heads, "mamba_d_head": size, "mamba_n_groups": groups}
    return {**_GRANITE, **sizes, **more}


def _falcon(heads: int, size: int, groups: int, **more: Any) -> dict[str, Any]:
    sizes = {"mamba_n_heads": heads, "mamba_d_head": size, "mamba_n_groups": groups}
    return {**_FALCON, **sizes, "mamba_d_ssm": heads * size, **more}


_RELU2_EXPERTS = {
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 192,
    "moe_shared_expert_intermediate_size": 384,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
_EXPERTS = {"num_local_experts": 12, "num_experts_per_tok": 3, "shared_intermediate_size": 512}
_BIASED_MLPS = {
    "num_local_experts": 0,
    "shared_intermediate_size": 896,
    "mamba_proj_bias": True,
    "mamba_conv_bias": False,
    "position_embedding_type": "rope",
    "tie_word_embeddings": True,
}
_BIASED_NORM = {
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "attention_bias": True,
    "mlp_bias": True,
    "mamba_proj_bias": True,
    "projectors_bias": True,
    "attention_in_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
}
_SMALL_FALCON = 320, (5, 1, 64), 640, 1001
MAMBA_CASES = (
    MambaCase("mlps", "NemotronH", 448, (8, 2, 64), 1024, 1000, True, _nemotron("M-*-MM*-", 16, 64, 2)),
    MambaCase(
        *("experts", "NemotronH", 384, (6, 2, 64), 768, 1001, True),
        _nemotron("MEM*E", 8, 80, 8, **_RELU2_EXPERTS),
    ),
    MambaCase(
        *("latent experts", "NemotronH", 384, (6, 2, 64), 768, 1001, False),
        _nemotron("ME*ME", 8, 64, 2, **_RELU2_EXPERTS, moe_latent_size=128),
    ),
    MambaCase(
        *("experts", "GraniteMoeHybrid", 512, (8, 2, 64), 256, 1000, True),
        _granite(16, 64, 1, **_EXPERTS),
    ),
    MambaCase(
        *("mlps, biases, RoPE", "GraniteMoeHybrid", 384, (6, 2, 64), 256, 1001, False),
        _granite(8, 96, 1, **_BIASED_MLPS),
    ),
    MambaCase("gate", "FalconH1", 512, (4, 2, 128), 1024, 1000, True, _falcon(16, 64, 1)),
    MambaCase(
        *("norm, gate", "FalconH1", *_SMALL_FALCON, False),
        _falcon(8, 64, 2, mamba_rms_norm=True, mamba_norm_before_gate=True),
    ),
    MambaCase(*("gate, norm, biases", "FalconH1", *_SMALL_FALCON, False), _falcon(24, 16, 3, **_BIASED_NORM)),
)
