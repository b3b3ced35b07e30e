"""Published models by name, each as the ``config.json`` its authors published.

For memory and benchmarks of a real model's size without its weights (``wisp fit llama-3-8b``,
``wisp-runtime bench decode --shape llama-3-8b``). Only keys that determine sizes and arithmetic are kept;
this is no list of supported models.

Sources: ``config.json`` of meta-llama/Meta-Llama-3-8B, Llama-3.2-1B and -3B; Qwen/Qwen3-0.6B to -14B,
Qwen2.5-0.5B and -7B; mistralai/Mistral-7B-v0.1; HuggingFaceTB/SmolLM2-135M, -360M and -1.7B.
"""

from __future__ import annotations

import difflib
from types import MappingProxyType

from wisp_plan.errors import UnknownShape
from wisp_plan.families.config import parse_config
from wisp_plan.hybrid_presets import HYBRIDS
from wisp_plan.mamba_presets import MAMBAS
from wisp_plan.mixture_presets import MIXTURES
from wisp_plan.spec.model import ModelSpec

Config = dict[str, object]


def shape_config(name: str) -> Config:
    """Return the ``config.json`` of a named shape, a copy.

    Raises:
        UnknownShape: no shape has that name; the message lists them.
    """
    if name not in SHAPES:
        hint = nearest_shape(name)
        raise UnknownShape(f"no shape '{name[:60]}' is known{hint}; there are {', '.join(SHAPES)}.")
    return dict(SHAPES[name])


def nearest_shape(name: str) -> str:
    """Return `` (did you mean 'llama-3-8b'?)`` with the shape whose name is close to this; empty: none is."""
    close = difflib.get_close_matches(name.lower(), SHAPES, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def shape_spec(name: str) -> ModelSpec:
    """Return the model spec of a named shape.

    Raises:
        UnknownShape: no shape has that name.
    """
    return parse_config(shape_config(name))


def _config(architecture: str, sizes: tuple[int, ...], heads: tuple[int, int, int], **more: object) -> Config:
    """Make a config of (hidden, layers, MLP, vocabulary) and (heads, KV heads, head size)."""
    hidden, layers, mlp, vocab = sizes
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "torch_dtype": "bfloat16",
    } | more


def _llama3(sizes: tuple[int, ...], heads: tuple[int, int, int], **more: object) -> Config:
    shared: Config = {
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    }
    return _config("Llama", sizes, heads, **shared | more)


def _llama32(hidden: int, layers: int, heads: tuple[int, int, int]) -> Config:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return _llama3(
        (hidden, layers, 8192, 128256),
        heads,
        max_position_embeddings=131072,
        rope_scaling=scaling,
        tie_word_embeddings=True,
    )


def _qwen3(sizes: tuple[int, int, int], heads: tuple[int, int], *, is_tied: bool) -> Config:
    return _config(
        "Qwen3",
        (*sizes, 151936),
        (*heads, 128),
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        tie_word_embeddings=is_tied,
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=sizes[1],
        bos_token_id=151643,
        eos_token_id=151645,
    )


def _qwen25(sizes: tuple[int, ...], heads: tuple[int, int, int], context: int, *, is_tied: bool) -> Config:
    return _config(
        "Qwen2",
        sizes,
        heads,
        max_position_embeddings=context,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=is_tied,
        use_sliding_window=False,
        sliding_window=context,
        max_window_layers=sizes[1],
        bos_token_id=151643,
        eos_token_id=151643,
    )


def _smollm2(sizes: tuple[int, int, int], heads: tuple[int, int, int], theta: float) -> Config:
    return _llama3(
        (*sizes, 49152),
        heads,
        rope_theta=theta,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


_MISTRAL_7B = _config(
    "Mistral",
    (4096, 32, 14336, 32000),
    (32, 8, 128),
    max_position_embeddings=32768,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    sliding_window=4096,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)

SHAPES: MappingProxyType[str, Config] = MappingProxyType(
    {
        "llama-3-8b": _llama3((4096, 32, 14336, 128256), (32, 8, 128)),
        "llama-3.2-1b": _llama32(2048, 16, (32, 8, 64)),
        "llama-3.2-3b": _llama32(3072, 28, (24, 8, 128)),
        "qwen3-0.6b": _qwen3((1024, 28, 3072), (16, 8), is_tied=True),
        "qwen3-1.7b": _qwen3((2048, 28, 6144), (16, 8), is_tied=True),
        "qwen3-4b": _qwen3((2560, 36, 9728), (32, 8), is_tied=True),
        "qwen3-8b": _qwen3((4096, 36, 12288), (32, 8), is_tied=False),
        "qwen3-14b": _qwen3((5120, 40, 17408), (40, 8), is_tied=False),
        "qwen2.5-0.5b": _qwen25((896, 24, 4864, 151936), (14, 2, 64), 32768, is_tied=True),
        "qwen2.5-7b": _qwen25((3584, 28, 18944, 152064), (28, 4, 128), 131072, is_tied=False),
        "mistral-7b": _MISTRAL_7B,
        "smollm2-135m": _smollm2((576, 30, 1536), (9, 3, 64), 100000.0),
        "smollm2-360m": _smollm2((960, 32, 2560), (15, 5, 64), 100000.0),
        "smollm2-1.7b": _smollm2((2048, 24, 8192), (32, 32, 64), 130000.0),
        **HYBRIDS,
        **MIXTURES,
        **MAMBAS,
        # Two layers, for trying a command where a published shape would take minutes.
        "toy": _llama3(
            (64, 2, 128, 512), (4, 2, 16), max_position_embeddings=1024, eos_token_id=1, bos_token_id=0
        ),
    }
)
"""Config by name, the largest family first."""

PUBLISHED = tuple(name for name in SHAPES if name != "toy")
"""Names of the published ones."""
