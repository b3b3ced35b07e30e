"""A step of a Gated DeltaNet on the GPU, and its results in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import cupy as cp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from recurrent_cases import (
    Tokens,
    delta_gates,
    delta_rule,
    delta_weights,
    gate_rows,
    have_counts,
    recurrent_batch,
    require_equal,
    require_recurrence,
)

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import StepKind
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv
from wisp_runtime.ops.cuda.recurrent.delta_decode import DecodeInputs, DeltaDecode, GateRows
from wisp_runtime.ops.cuda.recurrent.delta_prefill import DeltaInputs, DeltaPrefill
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.reference import recurrent
from wisp_runtime.ops.reference.packing import pack

SPECS = {
    "128": DeltaNetSpec(key_heads=2, value_heads=4, key_size=128, value_size=128),
    "three to one": DeltaNetSpec(key_heads=2, value_heads=6, key_size=64, value_size=128),
    "small": DeltaNetSpec(key_heads=3, value_heads=3, key_size=24, value_size=40),
}


def states_on_device(random, slots: int, *shape: int, dtype=np.float32):
    """Return ``[slots, *shape]``, slots apart by another layer's, on the GPU; and a copy on the host."""
    memory = to_device(random.standard_normal((slots, 2, *shape)).astype(dtype))
    return memory[:, 1], to_host(memory)[:, 1]


class DeltaCase:
    """A step with random states of ``slots`` slots, whose rows and states a kernel computes.

    Attributes:
        expected: o ``[N, Hv, Dv]`` in float64; ``wanted``, the states after the step.
    """

    def __init__(self, spec: DeltaNetSpec, sequences: list[Tokens], *, seed: int, slots: int) -> None:
        self.random = np.random.default_rng(seed)
        self.tokens = sum(sequence.count for sequence in sequences)
        self.spec, self.sequences, self.host_batch = spec, sequences, recurrent_batch(sequences)
        self.weights = delta_weights(spec, seed)
        names = "conv", "decay", "step_bias", "norm"
        on_device = {name: to_device(getattr(self.weights, name)) for name in names}
        self.on_device = replace(self.weights, **on_device)
        self.states, self.before = states_on_device(self.random, slots, *spec.cache().shapes[0])
        self.out = full_nan((self.tokens, spec.value_heads * spec.value_size), BF16)

    def expect(self, qkv: np.ndarray, gates: np.ndarray) -> None:
        """Compute what a step of these convolved channels and gates gives."""
        self.wanted = self.before.astype(np.float64)
        self.expected = delta_rule(qkv, gates, self.weights, self.spec, self.host_batch, self.wanted)

    def check(self, counts: range, *, state_error: float) -> None:
        """Compare the rows and states of sequences with so many tokens; the others are as they were."""
        got, states = to_host(self.out).astype(np.float64).reshape(self.expected.shape), to_host(self.states)
        is_computed = have_counts(self.sequences, counts)
        require_recurrence(self, got, self.expected, states, is_computed, state_error=state_error)


class PrefillCase(DeltaCase):
    """A step with random convolved channels and gates."""

    def __init__(
        self,
        spec: DeltaNetSpec,
        sequences: list[Tokens],
        *,
        seed: int = 0,
        slots: int = 40,
        kind: StepKind | None = None,
    ) -> None:
        super().__init__(spec, sequences, seed=seed, slots=slots)
        qkv = self.random.standard_normal((self.tokens, spec.conv_size)).astype(BF16)
        gates = delta_gates(spec, self.tokens, seed)
        self.expect(qkv, gates)
        self.batch = recurrent_batch(sequences, kind=kind, put=to_device)
        self.given = DeltaInputs(*map(to_device, (qkv, gates)), self.on_device, spec, self.batch)

    def prefill(self, device, *, min_tokens: int = 2, warps: int | None = None) -> None:
        DeltaPrefill(device, warps=warps)(self.given, self.states, self.out, min_tokens=min_tokens)


class DecodeCase(DeltaCase):
    """A step with random projections and inputs; expected are the channels of the kernel for prompts.

    Args:
        columns: columns of the gates' weight; None: gates are given.
    """

    def __init__(
        self,
        device,
        spec: DeltaNetSpec,
        sequences: list[Tokens],
        *,
        seed: int = 0,
        slots: int = 40,
        columns: int | None = None,
    ) -> None:
        super().__init__(spec, sequences, seed=seed, slots=slots)
        values = spec.value_heads * spec.value_size
        self.projected = self.random.standard_normal((self.tokens, spec.conv_size + values)).astype(BF16)
        self.inputs, self.inputs_before = states_on_device(
            self.random, slots, *spec.cache().shapes[1], dtype=BF16
        )
        self.batch = recurrent_batch(sequences, put=to_device)
        gates, given = self._gates(columns, seed)
        projected, copied = to_device(self.projected), to_device(self.inputs_before)
        of_step = projected, self.on_device.conv, None, self.batch, copied
        qkv = CausalConv(device)(*of_step, has_prefills=True, out_name="test.convolved")
        self.inputs_after = to_host(copied)
        self.expect(to_host(qkv), gates)
        self.given = DecodeInputs(projected, given, self.on_device, spec, self.batch)

    def _gates(self, columns: int | None, seed: int):
        if columns is None:
            gates = delta_gates(self.spec, self.tokens, seed)
            return gates, to_device(gates)
        x, weight = gate_rows(self.spec, self.tokens, columns, seed)
        packed = PackedMatrix(to_device(pack(weight)), *weight.shape)
        return x.astype(np.float64) @ weight.astype(np.float64).T, GateRows(to_device(x), packed)

    def decode(self, device, *, has_norm: bool = False) -> None:
        DeltaDecode(device)(self.given, self.states, self.inputs, self.out, has_norm=has_norm)
        if has_norm:
            z = self.projected[:, self.spec.conv_size :].astype(np.float64).reshape(self.expected.shape)
            norm = self.weights.norm
            self.expected = recurrent.gated_norm(self.expected, z, norm, eps=self.weights.eps)

    def check_inputs(self) -> None:
        """Compare the inputs that were left, to the bit."""
        expected = self.inputs_before.copy()
        for part, slot, _ in recurrent.sequences(self.host_batch):
            if slot >= 0 and part.stop - part.start == 1:
                expected[slot] = self.inputs_after[slot]
        require_equal("inputs", to_host(self.inputs).view(np.uint16), expected.view(np.uint16))


def bits(array: cp.ndarray) -> np.ndarray:
    """Return an array's bits on the host."""
    return to_host(array).view(np.uint8)
