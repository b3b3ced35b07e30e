"""Mamba-2: a selective state space whose decay is a scalar a head.

Source: Dao & Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_plan.spec.cache import State


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """Mamba-2 mixer of one layer.

    Attributes:
        heads, head_size: H, Dh: heads, and channels of one.
        state_size: states of a channel.
        groups: groups of as many heads each that share B and C; the norm has as many groups of channels.
        kernel: inputs of the causal convolution over the channels of x, B and C.
        has_conv_bias, has_input_bias, has_output_bias: biases of the convolution and of the projections.
        gating: order of the gate and the RMS norm of the result; ``gate`` alone has no norm.
        norm_eps: added to that norm's mean square.
        scales: factors of the projected z, x, B, C and time step.
        state_dtype: dtype of the recurrent state.
    """

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    kernel: int = 4
    has_conv_bias: bool = True
    has_input_bias: bool = False
    has_output_bias: bool = False
    gating: Literal["gate_then_norm", "norm_then_gate", "gate"] = "gate_then_norm"
    norm_eps: float = 1e-5
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    state_dtype: str = "float32"

    @property
    def inner(self) -> int:
        """Channels of all heads: H · Dh."""
        return self.heads * self.head_size

    @property
    def group_size(self) -> int:
        """Channels of B, and of C, in all groups."""
        return self.groups * self.state_size

    @property
    def conv_size(self) -> int:
        """Channels that the convolution covers: x, B and C."""
        return self.inner + 2 * self.group_size

    @property
    def projected_size(self) -> int:
        """Outputs of the projection: z, what the convolution covers, a time step a head."""
        return self.inner + self.conv_size + self.heads

    def cache(self) -> State:
        """Return the layer's state of a sequence: ``[H, Dh, states]``, and the convolution's last inputs."""
        recurrent = self.heads, self.head_size, self.state_size
        return State((recurrent, (self.kernel - 1, self.conv_size)), (self.state_dtype, "bf16"))
