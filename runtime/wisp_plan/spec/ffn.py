"""Feed-forward blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "relu2"]
"""Function between the projections in and out of a block, of gate g and up u:

- ``silu``: ``silu(g) * u``.
- ``gelu_tanh``: ``gelu(g) * u``, with the approximation by ``tanh``.
- ``clamped_swiglu``: with ``g = min(g, 7)`` and u clamped to ±7, ``(u + 1) * g * sigmoid(1.702 g)``.
- ``relu2``: ``max(u, 0) ** 2``; there is no gate.
"""


def has_gate(activation: Activation) -> bool:
    """Return whether a block with ``activation`` has a gate beside up."""
    return activation != "relu2"


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """MLP: ``down(activation(gate x, up x))``.

    Attributes:
        inner: F, the width of gate and up.
        activation: function between the projections.
        has_bias: biases of all projections.
        gate_scale, scale: factors of the gate before its activation, and of the result.
    """

    inner: int
    activation: Activation = "silu"
    has_bias: bool = False
    gate_scale: float = 1.0
    scale: float = 1.0

    @property
    def is_gated(self) -> bool:
        """Whether there is a gate beside up."""
        return has_gate(self.activation)
