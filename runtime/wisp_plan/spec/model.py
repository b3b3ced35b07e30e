"""What a model is: every dimension of a decoder-only transformer, named, from its ``config.json``.

Pure: a dict in, a frozen dataclass out. The engine builds from it, the ledger counts with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        kind: how positions beyond the trained context are scaled.
        factor: by how much (linear, llama3).
        low_freq_factor, high_freq_factor, original_max_context: of kind llama3.
        rotary_size: channels of a head that rotate (the rest pass through); even.
    """

    theta: float = 10000.0
    kind: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_context: int = 0
    rotary_size: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer, every dimension by its name.

    Attributes:
        architecture: as ``config.json`` names it, e.g. ``LlamaForCausalLM``.
        family: the file under ``models/`` that runs it, e.g. ``llama``.
        layers, hidden, mlp, vocab: L, D, F, V.
        heads, kv_heads, head_size: Hq, Hkv, Dh.
        max_context: longest sequence it was made for, in tokens.
        sliding_window: tokens a token may look back, or None for all.
        dtype: of the checkpoint's weights, as safetensors names it (``BF16``).
    """

    architecture: str
    family: str
    layers: int
    hidden: int
    mlp: int
    vocab: int
    heads: int
    kv_heads: int
    head_size: int
    max_context: int
    norm_eps: float
    rope: RopeSpec
    ties_embeddings: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "BF16"
