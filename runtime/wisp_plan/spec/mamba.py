"""Mamba-2: a selective state space whose decay is a scalar a head.

Source: Dao & Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.spec.cache import State


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """Mamba-2 mixer of one layer.

    Attributes:
        heads, head_size: heads, and channels of one.
        state_size: N, states of a channel.
        groups: groups of heads that share B and C.
        kernel: inputs of the causal convolution over the channels of x, B and C.
        has_conv_bias, has_bias: biases of the convolution, and of the projections in and out.
        state_dtype: dtype of the recurrent state.
    """

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    kernel: int = 4
    has_conv_bias: bool = True
    has_bias: bool = False
    state_dtype: str = "float32"

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_size

    @property
    def conv_size(self) -> int:
        """Channels that the convolution covers: x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    def cache(self) -> State:
        """Return the layer's state of a sequence: ``[H, Dh, N]``, and the convolution's last inputs."""
        recurrent = self.heads, self.head_size, self.state_size
        return State((recurrent, (self.kernel - 1, self.conv_size)), (self.state_dtype, "bf16"))
