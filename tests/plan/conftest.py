"""Real models' ``config.json``, by short name: only the keys that matter, copied as published."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from wisp_plan.families.config import parse_config
from wisp_plan.spec.model import ModelSpec

Config = dict[str, Any]

LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def _config(
    architecture: str, hidden: int, mlp: int, layers: int, heads: int, kv: int, **more: Any
) -> Config:
    return {
        "architectures": [architecture],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


CONFIGS: dict[str, Config] = {
    "llama-3-8b": _config(
        "LlamaForCausalLM",
        *(4096, 14336, 32, 32, 8),
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        rope_scaling=None,
        rms_norm_eps=1e-5,
        bos_token_id=128000,
        eos_token_id=128001,
        attention_bias=False,
    ),
    "llama-3.1-8b": _config(
        "LlamaForCausalLM",
        *(4096, 14336, 32, 32, 8),
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling=LLAMA3_SCALING,
        rms_norm_eps=1e-5,
        bos_token_id=128000,
        eos_token_id=[128001, 128008, 128009],
    ),
    "llama-3.2-1b": _config(
        "LlamaForCausalLM",
        *(2048, 8192, 16, 32, 8),
        vocab_size=128256,
        head_dim=64,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling={**LLAMA3_SCALING, "factor": 32.0},
        rms_norm_eps=1e-5,
        bos_token_id=128000,
        eos_token_id=128001,
        tie_word_embeddings=True,
    ),
    "llama-3.2-3b": _config(
        "LlamaForCausalLM",
        *(3072, 8192, 28, 24, 8),
        vocab_size=128256,
        head_dim=128,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling={**LLAMA3_SCALING, "factor": 32.0},
        rms_norm_eps=1e-5,
        bos_token_id=128000,
        eos_token_id=128001,
        tie_word_embeddings=True,
    ),
    "qwen2.5-7b": _config(
        "Qwen2ForCausalLM",
        *(3584, 18944, 28, 28, 4),
        vocab_size=152064,
        max_position_embeddings=131072,
        max_window_layers=28,
        sliding_window=131072,
        use_sliding_window=False,
        rope_theta=1000000.0,
        rms_norm_eps=1e-6,
        bos_token_id=151643,
        eos_token_id=151643,
    ),
    "qwen2.5-0.5b": _config(
        "Qwen2ForCausalLM",
        *(896, 4864, 24, 14, 2),
        vocab_size=151936,
        max_position_embeddings=32768,
        max_window_layers=24,
        sliding_window=32768,
        use_sliding_window=False,
        rope_theta=1000000.0,
        rms_norm_eps=1e-6,
        bos_token_id=151643,
        eos_token_id=151643,
        tie_word_embeddings=True,
    ),
    "qwen3-8b": _config(
        "Qwen3ForCausalLM",
        *(4096, 12288, 36, 32, 8),
        vocab_size=151936,
        head_dim=128,
        max_position_embeddings=40960,
        max_window_layers=36,
        sliding_window=None,
        use_sliding_window=False,
        rope_theta=1000000,
        rope_scaling=None,
        rms_norm_eps=1e-6,
        attention_bias=False,
        bos_token_id=151643,
        eos_token_id=151645,
    ),
    "qwen3-0.6b": _config(
        "Qwen3ForCausalLM",
        *(1024, 3072, 28, 16, 8),
        vocab_size=151936,
        head_dim=128,
        max_position_embeddings=40960,
        max_window_layers=28,
        use_sliding_window=False,
        rope_theta=1000000,
        rms_norm_eps=1e-6,
        bos_token_id=151643,
        eos_token_id=151645,
        tie_word_embeddings=True,
    ),
    "mistral-7b-v0.1": _config(
        "MistralForCausalLM",
        *(4096, 14336, 32, 32, 8),
        vocab_size=32000,
        max_position_embeddings=32768,
        sliding_window=4096,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "mistral-7b-v0.3": _config(
        "MistralForCausalLM",
        *(4096, 14336, 32, 32, 8),
        vocab_size=32768,
        max_position_embeddings=32768,
        sliding_window=None,
        rope_theta=1000000.0,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "smollm2-135m": _config(
        "LlamaForCausalLM",
        *(576, 1536, 30, 9, 3),
        vocab_size=49152,
        max_position_embeddings=8192,
        rope_theta=100000,
        rope_scaling=None,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    ),
}

ConfigOf = Callable[..., Config]
SpecOf = Callable[..., ModelSpec]


@pytest.fixture
def config_of() -> ConfigOf:
    """Make a copy of a model's configuration; keywords replace keys, ``...`` drops one."""

    def make(name: str, **changes: Any) -> Config:
        config = copy.deepcopy(CONFIGS[name]) | changes
        return {key: value for key, value in config.items() if value is not ...}

    return make


@pytest.fixture
def spec_of(config_of: ConfigOf) -> SpecOf:
    """Parse a model's configuration; keywords as for ``config_of``."""

    def make(name: str, **changes: Any) -> ModelSpec:
        return parse_config(config_of(name, **changes))

    return make
