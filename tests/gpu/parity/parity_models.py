"""Models to compare: every switch of every family, at sizes of our own that are multiples of little.

Random weights of a size at which attention is neither flat nor a single key, rounded to bf16, so that both
sides compute from the same numbers. Written as safetensors for our loader.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from mamba_configs import MAMBA_CASES
from parity_storage import FP8, MXFP4, stored_tensors
from safetensors.torch import save_file

LAYERS = 4
CONTEXT = 8192


@dataclass(frozen=True)
class Case:
    """A model to compare.

    Attributes:
        name: name of the case.
        config: its ``config.json``.
        is_long: whether lengths of thousands are compared too.
        is_split: whether experts are stored one by one, under their family's names.
        is_fp8: whether projections and experts are stored in E4M3 with a scale a block.
        is_mxfp4: whether experts are stored in E2M1 with an exponent for 32 columns.
    """

    name: str
    config: dict[str, Any]
    is_long: bool = True
    is_split: bool = False
    is_fp8: bool = False
    is_mxfp4: bool = False

    @property
    def quantization(self) -> dict[str, Any]:
        """Keys of its ``config.json`` that say how it is stored."""
        return FP8 if self.is_fp8 else MXFP4 if self.is_mxfp4 else {}

    @property
    def is_mixture(self) -> bool:
        """Whether some layers are mixtures of experts."""
        return "num_experts_per_tok" in self.config

    @property
    def has_transposed_experts(self) -> bool:
        """Whether matrices of experts are ``[in, out]``."""
        return self.config["model_type"] == "gpt_oss"

    @property
    def has_delta_net(self) -> bool:
        """Whether some layers are Gated DeltaNet."""
        return "linear_num_key_heads" in self.config

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers have a state of fixed size."""
        return self.has_delta_net or not self.config.keys().isdisjoint(("mamba_num_heads", "mamba_n_heads"))

    @property
    def has_scaled_embeddings(self) -> bool:
        """Whether embeddings are multiplied by the root of their size, and norms are zero-centred."""
        return self.config["model_type"].startswith("gemma3")

    @property
    def stream_scale(self) -> float:
        """Factor of our streams that makes them transformers': Granite's branches are multiplied there."""
        return float(self.config.get("residual_multiplier", 1.0))


def _case(
    architecture: str,
    hidden: int,
    heads: tuple[int, int, int],
    mlp: int,
    vocab: int,
    *,
    is_long: bool,
    is_split: bool = False,
    is_fp8: bool = False,
    is_mxfp4: bool = False,
    **more: Any,
) -> Case:
    config = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | more
    name = f"{architecture.lower()} D{hidden} H{heads[0]}/{heads[1]}x{heads[2]} F{mlp} V{vocab}"
    name += " in FP8" if is_fp8 else " in MXFP4" if is_mxfp4 else " one by one" if is_split else ""
    return Case(name, config, is_long, is_split, is_fp8, is_mxfp4)


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
_BIASED = {"attention_bias": True, "mlp_bias": True}
_TIED = {"tie_word_embeddings": True}


def _delta_net(
    key_heads: int, value_heads: int, key_size: int, value_size: int, **more: Any
) -> dict[str, Any]:
    """Return keys of a hybrid: three layers of Gated DeltaNet before one of attention."""
    return {
        "model_type": "qwen3_5_text",
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_size,
        "linear_value_head_dim": value_size,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
    } | more


def _qwen3_moe(experts: int, chosen: int, inner: int, **more: Any) -> dict[str, Any]:
    keys = {"model_type": "qwen3_moe", "num_experts": experts, "moe_intermediate_size": inner}
    return keys | {"num_experts_per_tok": chosen} | more


def _shared_moe(
    kind: str, experts: int, chosen: int, inner: int, shared: int | None = None, **more: Any
) -> dict[str, Any]:
    keys = _qwen3_moe(experts, chosen, inner, shared_expert_intermediate_size=shared or inner)
    return keys | {"model_type": kind} | more


def _mixtral(experts: int, **more: Any) -> dict[str, Any]:
    return {"num_local_experts": experts, "num_experts_per_tok": 2} | more


def _glm(experts: int, chosen: int, inner: int, **more: Any) -> dict[str, Any]:
    keys = {"model_type": "glm4_moe", "n_routed_experts": experts, "moe_intermediate_size": inner}
    return keys | {"num_experts_per_tok": chosen, "partial_rotary_factor": 0.5, "num_mtp_layers": 0} | more


def _gpt_oss(experts: int, chosen: int, window: int) -> dict[str, Any]:
    scaling = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return {
        "model_type": "gpt_oss",
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
        "sliding_window": window,
        "attention_bias": True,
        "rope_theta": 150000.0,
        "rope_scaling": scaling | {"original_max_position_embeddings": 1024},
    }


def _gemma(window: int, scaling: float = 1.0, **more: Any) -> dict[str, Any]:
    scaled = {"rope_type": "linear", "factor": scaling} if scaling != 1 else {"rope_type": "default"}
    ropes = {"rope_type": "default", "rope_theta": 1e4}, scaled | {"rope_theta": 1e6}
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": dict(zip(("sliding_attention", "full_attention"), ropes, strict=True)),
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    } | more


_GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 2}

CASES = (
    _case(
        "Llama", 576, (9, 3, 64), 1536, 49152, is_long=True, rope_scaling=_LLAMA3, tie_word_embeddings=True
    ),
    _case("Qwen2", 896, (14, 2, 64), 4864, 151936, is_long=True, tie_word_embeddings=True, rope_theta=1e6),
    _case("Qwen3", 1024, (16, 8, 128), 3080, 1000, is_long=True, rope_theta=1e6),
    _case("Mistral", 2048, (16, 4, 96), 4864, 1000, is_long=True, sliding_window=1000),
    _case("Llama", 1024, (8, 2, 128), 3584, 1000, is_long=True, rope_scaling=_LLAMA3, **_BIASED),
    _case("Llama", 1024, (16, 2, 80), 1544, 1000, is_long=False, **_BIASED),
    _case("Qwen3", 896, (6, 6, 192), 1536, 1001, is_long=False, tie_word_embeddings=True),
    _case("Mistral", 576, (8, 1, 256), 2000, 1000, is_long=False, sliding_window=40),
    _case("Qwen3_5", 512, (6, 2, 256), 1024, 1000, is_long=True, **_delta_net(2, 6, 128, 128)),
    _case("Qwen3_5", 320, (4, 4, 64), 520, 1001, is_long=False, **_delta_net(4, 4, 64, 128), **_TIED),
    _case("Gemma3", 640, (4, 1, 256), 2048, 1000, is_long=True, **_gemma(512)),
    _case(
        *("Gemma3", 512, (8, 4, 128), 1000, 1001),
        is_long=False,
        **_gemma(40, scaling=8.0, query_pre_attn_scalar=168),
    ),
)
MIXTURES = (
    _case(
        "Qwen3Moe",
        *(512, (8, 2, 64), 768, 1000),
        is_long=True,
        **_qwen3_moe(32, 4, 128, norm_topk_prob=True, mlp_only_layers=[1]),
    ),
    _case("Qwen3Moe", 320, (4, 4, 64), 520, 1001, is_long=False, is_split=True, **_qwen3_moe(24, 3, 72)),
    _case("Mixtral", 512, (8, 4, 64), 448, 1000, is_long=True, **_mixtral(8)),
    _case(
        *("Mixtral", 384, (6, 2, 64), 264, 1001),
        is_long=False,
        is_split=True,
        **_mixtral(5, sliding_window=40),
    ),
    _case(
        "Glm4Moe",
        *(512, (8, 2, 64), 768, 1000),
        is_long=True,
        **_glm(16, 4, 192, use_qk_norm=True, **_BIASED),
    ),
    _case("Glm4Moe", 320, (4, 2, 96), 520, 1001, is_long=False, is_split=True, **_glm(16, 4, 136, **_GROUPS)),
    _case(
        *("Qwen3Moe", 384, (6, 2, 64), 512, 1001),
        is_long=False,
        is_split=True,
        is_fp8=True,
        **_qwen3_moe(16, 4, 128, norm_topk_prob=True),
    ),
    _case(
        *("Qwen3_5Moe", 512, (6, 2, 256), 512, 1000),
        is_long=True,
        **_delta_net(2, 6, 128, 128) | _shared_moe("qwen3_5_moe_text", 32, 4, 128, shared=192),
    ),
    _case(
        *("Qwen3Next", 384, (4, 2, 128), 512, 1001),
        is_long=True,
        is_split=True,
        **_delta_net(3, 6, 64, 128) | _shared_moe("qwen3_next", 24, 3, 72, mlp_only_layers=[1]),
    ),
    _case(
        *("Qwen3Next", 512, (4, 2, 128), 512, 1000),
        is_long=False,
        is_split=True,
        is_fp8=True,
        **_delta_net(2, 4, 128, 128) | _shared_moe("qwen3_next", 16, 4, 128),
    ),
    _case("GptOss", 512, (8, 2, 64), 320, 1000, is_long=True, **_gpt_oss(16, 4, 128)),
    _case("GptOss", 320, (16, 2, 64), 96, 1001, is_long=True, is_mxfp4=True, **_gpt_oss(8, 3, 40)),
)
CASES += MIXTURES
MAMBAS = tuple(
    replace(
        _case(
            case.architecture,
            case.hidden,
            case.heads,
            case.mlp,
            case.vocab,
            is_long=case.is_long,
            **case.keys,
        ),
        name=f"{case.architecture} D{case.hidden} {case.trait}",
    )
    for case in MAMBA_CASES
)
CASES += MAMBAS
CASE_NAMES = [case.name for case in CASES]


def write_model(case: Case, folder: Path) -> Any:
    """Write a checkpoint of ``case`` into ``folder``; return transformers' model of it, float32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config))
    config = transformers.AutoConfig.from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(case.config | case.quantization))
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean, deviation = _distribution(name, parameter, case)
            values = torch.empty_like(parameter).normal_(mean, deviation, generator=generator)
            parameter.copy_(values.to(torch.bfloat16))
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.copy_(torch.empty_like(buffer).normal_(0, 0.1, generator=generator))
    for module in model.modules():
        if hasattr(module, "time_step_limit"):  # Nemotron-H's prompts are bounded, its decodes are not
            module.time_step_limit = (0.0, math.inf)
    save_file(stored_tensors(case, model), folder / "model.safetensors", metadata={"format": "pt"})
    return model


_GAINS = {"q_proj": 1.2, "k_proj": 1.2, "o_proj": 4.0, "down_proj": 0.5, "lm_head": 4.0}
_EMBEDDING_DEVIATION = 0.5


def _distribution(name: str, parameter: Any, case: Case) -> tuple[float, float]:
    """Return mean and deviation; norms are zero-centred in Gemma, and beside Gated DeltaNet all but its own.

    Attention scores deviate by 1.4, so that attention is neither flat nor a single key, and its output weighs
    so much that a few keys missing among thousands show in the stream.
    """
    if name.endswith(("norm.weight", "norm_f.weight", ".D")):
        is_zero_centred = case.has_scaled_embeddings or (case.has_delta_net and "linear_attn" not in name)
        return 0.0 if is_zero_centred else 1.0, 0.15
    if name.endswith(".A_log"):
        return 0.0, 1.0
    if name.endswith(".dt_bias") and not case.has_delta_net:
        return -2.0, 1.5  # heads that forget within a few tokens, and within a thousand
    if name.endswith(("bias", ".sinks")):
        return 0.0, 0.3
    if "embed" in name:
        scale = math.sqrt(case.config["hidden_size"]) if case.has_scaled_embeddings else 1.0
        return 0.0, _EMBEDDING_DEVIATION / scale
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
    is_transposed = parameter.ndim == 3 and case.has_transposed_experts
    return 0.0, gain / math.sqrt(parameter.shape[-2 if is_transposed else -1])
