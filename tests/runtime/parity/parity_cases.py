"""Small models of families that are compared with transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model to compare.

    Attributes:
        name: name of the case.
        config: its ``config.json``.
        is_mxfp4: whether its experts are stored in MXFP4.
    """

    name: str
    config: dict[str, Any]
    is_mxfp4: bool = False


_GPT_OSS = Case(
    "gpt_oss",
    {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "vocab_size": 500,
        "sliding_window": 40,
        "max_position_embeddings": 8192,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 256,
        },
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
)
_MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router", "lm_head"]}

CASES = (
    _GPT_OSS,
    replace(
        _GPT_OSS,
        name="gpt_oss, MXFP4",
        config=_GPT_OSS.config | {"quantization_config": _MXFP4},
        is_mxfp4=True,
    ),
)
