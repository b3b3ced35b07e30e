"""``config.json`` and ``generation_config.json`` from GGUF metadata, with Hugging Face's keys."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.rope import DEFAULT_THETA
from wisp_plan.families.windows import FULL, SLIDING
from wisp_plan.gguf.metadata import ARCHITECTURE, Metadata
from wisp_plan.json_object import shorten

ROPE_FACTORS = "rope_freqs.weight"
EMBEDDINGS = "token_embd.weight"
HEAD = "output.weight"
REMEDY = "Use the repository with the original safetensors weights."

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Scaling of RoPE in every Llama 3.1 to 3.3, beside its factor."""

_GEMMA3_THETA = 1e6
_TOLERANCE = 1e-5
_MAX_FLOAT32 = 3.4e38


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models under ggml's name of its architecture.

    Attributes:
        name: architecture and model type in ``config.json``.
        has_paired_rows: whether the rows of Q and K are stored in ggml's order for RoPE, pairs side by side.
        has_qk_norm: whether heads of Q and K have norms.
        has_experts: whether layers have experts; each projection of all of them is one tensor.
        has_following_norms: whether norms follow the mixer and the ffn of a layer, too.
        are_norms_raised: whether weights of norms are stored one larger than in the family's checkpoints,
            where a channel's factor is one more than its weight.
        keys: further keys of ``config.json``, from the metadata.
    """

    name: tuple[str, str]
    has_paired_rows: bool = False
    has_qk_norm: bool = False
    has_experts: bool = False
    has_following_norms: bool = False
    are_norms_raised: bool = False
    keys: Callable[[Metadata], Mapping[str, object]] = lambda _source: {}


def _gemma3_keys(source: Metadata) -> dict[str, object]:
    """Return Gemma's own keys; files need not have the base and the pattern of layers with a window."""
    theta = _shortest(source.get("{arch}.rope.freq_base", float) or _GEMMA3_THETA)
    local = _shortest(source.get("{arch}.rope.freq_base_swa", float) or DEFAULT_THETA)
    full: dict[str, object] = {"rope_type": "default", "rope_theta": theta}
    if source.get("{arch}.rope.scaling.type", str, "none") == "linear":
        full |= {"rope_type": "linear", "factor": source.require("{arch}.rope.scaling.factor", float)}
    sliding = {"rope_type": "default", "rope_theta": local}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": source.require("{arch}.attention.key_length", int),
        "sliding_window": source.require("{arch}.attention.sliding_window", int),
        "rope_local_base_freq": local,
        "rope_parameters": {FULL: full, SLIDING: sliding},
    }


def _qwen3moe_keys(source: Metadata) -> dict[str, object]:
    """Return the keys of experts; llama.cpp divides the weights of the chosen by their sum, always."""
    return {
        "num_experts": _integer(source, "expert_count"),
        "num_experts_per_tok": _integer(source, "expert_used_count"),
        "moe_intermediate_size": _integer(source, "expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


FAMILIES = {
    "gemma3": Family(
        ("Gemma3ForCausalLM", "gemma3_text"),
        has_qk_norm=True,
        has_following_norms=True,
        are_norms_raised=True,
        keys=_gemma3_keys,
    ),
    "llama": Family(("LlamaForCausalLM", "llama"), has_paired_rows=True),
    "qwen2": Family(("Qwen2ForCausalLM", "qwen2")),
    "qwen3": Family(("Qwen3ForCausalLM", "qwen3"), has_qk_norm=True),
    "qwen3moe": Family(
        ("Qwen3MoeForCausalLM", "qwen3_moe"), has_qk_norm=True, has_experts=True, keys=_qwen3moe_keys
    ),
}
"""Families that are read, by ggml's names; Mistral is a llama there."""


def family_of(source: Metadata) -> Family:
    """Return the family of a file.

    Raises:
        ConfigInvalid: it is none that is read.
    """
    architecture = source.architecture
    if architecture not in FAMILIES:
        raise ConfigInvalid(
            f"{source.file}: the architecture {shorten(repr(architecture))} is not read from GGUF; "
            f"{', '.join(FAMILIES)} are. {REMEDY}",
            key=ARCHITECTURE,
        )
    return FAMILIES[architecture]


def config(
    source: Metadata, rope_factors: Sequence[float] = (), dtype: str = "bfloat16"
) -> dict[str, object]:
    """Return ``config.json`` of a model.

    Args:
        source: the file's metadata.
        rope_factors: values of the tensor ``rope_freqs.weight``, one a pair of channels.
        dtype: ``torch_dtype`` of the weights.

    Raises:
        ConfigInvalid: another architecture, or an unsupported scaling of positions.
    """
    family = family_of(source)
    architecture, model_type = family.name
    hidden, heads = _integer(source, "embedding_length"), _integer(source, "attention.head_count")
    head_size = source.get("{arch}.attention.key_length", int) or hidden // heads
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _integer(source, "feed_forward_length"),
        "num_hidden_layers": _integer(source, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.get("{arch}.attention.head_count_kv", int, heads),
        "head_dim": head_size,
        "max_position_embeddings": _integer(source, "context_length"),
        "rms_norm_eps": _shortest(source.require("{arch}.attention.layer_norm_rms_epsilon", float)),
        **_rope(source, head_size, rope_factors),
        "vocab_size": _vocab(source),
        "tie_word_embeddings": HEAD not in source.tensors,
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in source.tensors,
        "torch_dtype": dtype,
        **special_token_ids(source),
        **family.keys(source),
    }


def generation_config(source: Metadata) -> dict[str, object]:
    """Return ``generation_config.json``: the tokens that begin a sequence, and all that end one."""
    names = ("eos", "eot", "eom")  # end of the text, of a turn, of a message
    ends = (source.get(f"tokenizer.ggml.{name}_token_id", int) for name in names)
    unique = dict.fromkeys(token for token in ends if token is not None)
    listed = {"eos_token_id": list(unique)} if len(unique) > 1 else {}
    return {**special_token_ids(source), **listed}


def special_token_ids(source: Metadata) -> dict[str, int]:
    """Return the ids of the file's special tokens, as ``bos_token_id`` and so on."""
    named = {"bos": "bos", "eos": "eos", "padding": "pad"}
    ids = {ours: source.get(f"tokenizer.ggml.{theirs}_token_id", int) for theirs, ours in named.items()}
    return {f"{name}_token_id": value for name, value in ids.items() if value is not None}


def _integer(source: Metadata, key: str) -> int:
    value = source.require(f"{{arch}}.{key}", int)
    if value < 1:
        key = f"{source.architecture}.{key}"
        raise ConfigInvalid(
            f"{source.file}: {key} is {value}; expected at least 1. Use another file.", key=key
        )
    return value


def _vocab(source: Metadata) -> int:
    embeddings = source.tensors.get(EMBEDDINGS)
    if embeddings is None or len(embeddings.shape) != 2:
        raise ConfigInvalid(
            f"{source.file} has no matrix {EMBEDDINGS}, which a model needs. Use another file.",
            key=EMBEDDINGS,
        )
    return embeddings.shape[0]


def _rope(source: Metadata, head_size: int, factors: Sequence[float]) -> dict[str, object]:
    """Return the RoPE keys, for transformers before and after version 5."""
    theta = _shortest(source.get("{arch}.rope.freq_base", float) or DEFAULT_THETA)
    rotary_size = source.get("{arch}.rope.dimension_count", int, head_size)
    kind = source.get("{arch}.rope.scaling.type", str, "none")
    scaling: dict[str, object] = {"rope_type": "default"}
    if kind == "linear" and not factors:
        scaling = {"rope_type": "linear", "factor": source.require("{arch}.rope.scaling.factor", float)}
    elif kind != "none" or rotary_size != head_size:
        raise _unsupported_rope(source)
    elif any(factor != 1 for factor in factors):
        scaling = _llama3(source, theta, head_size, factors)
    return {
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, **scaling},
        **({} if scaling["rope_type"] == "default" else {"rope_scaling": scaling}),
    }


def _llama3(source: Metadata, theta: float, head_size: int, factors: Sequence[float]) -> dict[str, object]:
    """Return Llama 3.1's scaling if it is the one that gives ``factors``.

    Raises:
        ConfigInvalid: it is another.
    """
    factor = float(round(max(factors), 3))
    expected = [_llama3_factor(theta ** (2 * i / head_size), factor) for i in range(head_size // 2)]
    if len(factors) != len(expected) or not all(
        math.isclose(stored, wanted, rel_tol=_TOLERANCE)
        for stored, wanted in zip(factors, expected, strict=True)
    ):
        raise _unsupported_rope(source)
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_factor(period: float, factor: float) -> float:
    """Return the factor of a pair of channels whose wavelength is ``2 pi period``; transformers' formula."""
    low, high, original = _LLAMA3.values()
    turns = original / (2 * math.pi * period)
    if turns < low:
        return factor
    if turns > high:
        return 1.0
    smooth = (turns - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


def unpack_factors(raw: bytes) -> tuple[float, ...]:
    """Return the float32 values of ``rope_freqs.weight``."""
    return tuple(value for (value,) in struct.iter_unpack("<f", raw))


def _unsupported_rope(source: Metadata) -> ConfigInvalid:
    return ConfigInvalid(
        f"{source.file}: its rotary embedding is scaled or partial in a way that is not read. {REMEDY}",
        key="rope",
    )


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    if not abs(value) < _MAX_FLOAT32:
        return value
    single = _as_float32(value)
    return next(
        (short for digits in range(1, 9) if _as_float32(short := float(f"{single:.{digits}g}")) == single),
        single,
    )


def _as_float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)
