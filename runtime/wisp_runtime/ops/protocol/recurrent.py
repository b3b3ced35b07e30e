"""Recurrent mixers of a device: its projections in, and all up to the one out as one operation.

One call has all that a step needs, so that a device chooses what to fuse: a decode step may be a single
kernel, a prompt's a convolution, a chunked recurrence and a norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.protocol.gemm import Matrix


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """Weights of a Gated DeltaNet beside its projections.

    Attributes:
        conv: ``[C, K]``, taps of each channel's convolution, the newest input's last.
        decay: ``[Hv]`` float32, logarithm of the decay rate (``A_log``).
        step_bias: ``[Hv]`` float32, added to the step size before softplus (``dt_bias``).
        norm: ``[Dv]`` float32, weight of the gated norm.
        eps: added to that norm's mean square.
    """

    conv: Array
    decay: Array
    step_bias: Array
    norm: Array
    eps: float


@dataclass(frozen=True, slots=True)
class MambaWeights:
    """Weights of a Mamba-2 mixer beside its projections.

    Attributes:
        conv: ``[C, K]``, taps of each channel's convolution, the newest input's last.
        conv_bias: ``[C]``, or None.
        decay: ``[H]`` float32, logarithm of the decay rate (``A_log``).
        step_bias: ``[H]`` float32, added to the time step before softplus (``dt_bias``).
        skip: ``[H]`` float32, factor of x in the result (``D``).
        norm: ``[H Dh]`` float32, weight of the norm; None: gating is ``gate``.
    """

    conv: Array
    conv_bias: Array | None
    decay: Array
    step_bias: Array
    skip: Array
    norm: Array | None


@dataclass(frozen=True, slots=True)
class RecurrentStep:
    """Sequences of a step, and the states of a layer that they update in place.

    Sequence b has its state in slot ``batch.state_slots[b]``. It begins with zeros, whatever the slot holds,
    where its first token of the step is at position 0. Slots may be apart.

    Attributes:
        batch: the step; ``positions``, ``query_starts`` and ``state_slots`` are read.
        states: ``[slots, Hv, Dk, Dv]`` of a Gated DeltaNet, ``[slots, H, Dh, S]`` of Mamba-2, in
            ``spec.state_dtype``.
        inputs: ``[slots, K - 1, C]``, the convolution's last inputs, the newest last.
        rows: ``[R]``, the rows of the result that are wanted; None: all. States are updated for all.
    """

    batch: Batch
    states: Array
    inputs: Array
    rows: Array | None = None


DeltaNetGates = Any
"""Gates ``[N, 2 Hv]`` of a step, or what a device needs to compute them with the rest."""


class RecurrentOps(Protocol):
    """Mixers with a state of fixed size a sequence."""

    def project_delta_net(
        self, x: Array, qkvz: Matrix, gates: Matrix, batch: Batch
    ) -> tuple[Array, DeltaNetGates]:
        """Return ``x W^T`` of both matrices: ``projected`` and ``gates`` of :meth:`delta_net`.

        Args:
            x: ``[N, D]``.
            qkvz: ``[C + Hv Dv, D]``.
            gates: ``[2 Hv, D]``.
            batch: the step.
        """
        ...

    def delta_net(
        self,
        projected: Array,
        gates: DeltaNetGates,
        weights: DeltaNetWeights,
        spec: DeltaNetSpec,
        step: RecurrentStep,
    ) -> Array:
        """Convolve Q, K and V, normalise Q and K, update the states by the delta rule, norm and gate.

        A row depends on the rows of its own sequence alone.

        Args:
            projected: ``[N, C + Hv Dv]``: Q and K of all key heads, V and the output gate Z of all value
                heads, head after head. C is ``spec.conv_size``. Rows may be apart, also those of ``gates``.
            gates: ``[N, 2 Hv]``: b, then a, of all value heads. ``beta = sigmoid(b)``, and the decay is
                ``exp(-exp(decay) * softplus(a + step_bias))``.
            weights: convolution, decay and norm.
            spec: heads and sizes.
            step: sequences and states.

        Returns:
            ``[N, Hv Dv]``, or ``[R, Hv Dv]``, contiguous.

        Source: Yang et al. 2024, arXiv:2412.06464.
        """
        ...

    def project_mamba(self, x: Array, weight: Matrix, bias: Array | None) -> Array:
        """Return ``x W^T + bias``: ``[N, D]`` to ``projected`` of :meth:`mamba`."""
        ...

    def mamba(
        self,
        projected: Array,
        weights: MambaWeights,
        spec: MambaSpec,
        step: RecurrentStep,
    ) -> Array:
        """Convolve x, B and C, update the states by the selective scan, gate and norm the result.

        With ``projected`` in its parts z, x, B, C and t, each multiplied by its factor of ``spec.scales``::

            x, B, C = silu(conv(x, B, C) + conv_bias)
            t = softplus(t + step_bias)
            S = exp(-t exp(decay)) S + (t x) B^T
            y = S C + skip x

        then, by ``spec.gating``, ``norm(y silu(z))``, ``norm(y) silu(z)`` or ``y silu(z)``: RMS norms of
        ``spec.groups`` groups of channels. Heads of a group share B and C. A row depends on the rows of its
        own sequence alone.

        Args:
            projected: ``[N, 2 H Dh + 2 G S + H]``: z and x of H heads of Dh channels, B and C of G groups
                of S states, t.
            weights: convolution, scan and norm.
            spec: heads and sizes.
            step: sequences and states; inputs with their factors or without, as the device keeps them.

        Returns:
            ``[N, H Dh]``, or ``[R, H Dh]``, contiguous.

        Source: Dao & Gu 2024, arXiv:2405.21060, section 7.
        """
        ...
