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
        factor: factor of that scaling (linear, llama3).
        low_freq_factor, high_freq_factor, original_max_context: parameters of kind llama3.
        rotary_size: channels of a head that RoPE is applied to, even; the rest pass through. 0: all.
    """

    theta: float = 10000.0
    kind: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_context: int = 0
    rotary_size: int = 0
