"""Feed-forward blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """Gated MLP: ``down(activation(gate x) * up x)``.

    Attributes:
        inner: F, the width of gate and up.
        activation: function of the gate.
        has_bias: biases of all three projections.
    """

    inner: int
    activation: Literal["silu"] = "silu"
    has_bias: bool = False
