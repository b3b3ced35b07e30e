"""Rotary position embedding of an attention layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        kind: scaling of positions beyond the trained context.
        factor: factor of that scaling (linear, llama3, yarn).
        low_freq_factor, high_freq_factor: parameters of kind llama3.
        original_max_context: context that the model was trained for, of kinds llama3 and yarn.
        beta_fast, beta_slow: full periods in that context from which on, and up to which, kind yarn keeps a
            frequency, and divides it by ``factor``.
        is_truncated: whether the channels of those two are rounded outwards to whole ones (yarn).
        amplitude: factor of cosines and sines, yarn's attention factor.
        rotary_size: channels of a head that RoPE is applied to, even; the rest pass through. 0: all.
    """

    theta: float = 10000.0
    kind: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    amplitude: float = 1.0
    rotary_size: int = 0
