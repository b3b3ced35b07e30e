"""Gated DeltaNet: linear attention whose state decays, and is corrected by the delta rule.

Source: Yang et al. 2024, arXiv:2412.06464.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.spec.cache import State


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """Gated DeltaNet of one layer.

    Attributes:
        key_heads, value_heads: heads of Q and K, and of V; each of the former serves equally many of the
            latter, one behind the other.
        key_size, value_size: channels of a head.
        kernel: inputs of the causal convolution over the channels of Q, K and V.
        is_grouped: whether the checkpoint stores projections a key head at a time (Qwen3-Next).
        state_dtype: dtype of the recurrent state.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int = 4
    is_grouped: bool = False
    state_dtype: str = "float32"

    @property
    def conv_size(self) -> int:
        """Channels that the convolution covers: Q, K and V of all heads."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    def cache(self) -> State:
        """Return the layer's state of a sequence: ``[Hv, Dk, Dv]``, and the convolution's last inputs."""
        recurrent = self.value_heads, self.key_size, self.value_size
        return State((recurrent, (self.kernel - 1, self.conv_size)), (self.state_dtype, "bf16"))
