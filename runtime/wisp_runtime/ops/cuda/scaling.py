"""Scaled results, and activations other than gated SiLU, of a GPU."""

from __future__ import annotations

from functools import cached_property

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.elementwise.activation import Activate
from wisp_runtime.ops.cuda.elementwise.scaling import AddScaled, Scale
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix


class Scaling:
    """Scaling and those activations, as :class:`.ops.CudaOps` has them; activations are in ``swiglu``."""

    _device: Gpu
    _linear: Linear

    @cached_property
    def _scaled(self) -> Scale:
        return Scale(self._device)

    @cached_property
    def _add_scaled(self) -> AddScaled:
        return AddScaled(self._device)

    @cached_property
    def _activate(self) -> Activate:
        return Activate(self._device)

    def scale(self, x: Array, factor: float) -> Array:
        """See :class:`.scaling.Scale`."""
        return self._scaled(x, factor)

    def add_scaled(self, x: Array, residual: Array, factor: float, rows: Array | None = None) -> None:
        """See :class:`.scaling.AddScaled`."""
        self._add_scaled(x, residual, factor, rows)

    def scaled_swiglu(self, x: Array, weight: Matrix, bias: Array | None, gate_scale: float) -> Array:
        """Launch a GEMM, then :class:`.activation.Activate`."""
        gate_up = self._linear.gate_up(x, weight, bias, out_name="gate_up")
        return self._activate(gate_up, "silu", gate_scale, out_name="swiglu")

    def geglu(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Launch a GEMM, then :class:`.activation.Activate`."""
        gate_up = self._linear.gate_up(x, weight, bias, out_name="gate_up")
        return self._activate(gate_up, "gelu", out_name="swiglu")

    def relu2(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Launch a GEMM, then :class:`.activation.Activate` in place."""
        up = self._linear(x, weight, bias, out_name="swiglu")
        return self._activate(up, "relu2", out_name="swiglu")

    def from_latent(self, x: Array, weight: Matrix, added: Array | None = None) -> Array:
        """Launch a GEMM, then :class:`.scaling.AddScaled`."""
        out = self._linear(x, weight, out_name="from_latent")
        if added is not None:
            self._add_scaled(added, out, 1.0)
        return out
