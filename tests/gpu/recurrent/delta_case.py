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
    recurrent_batch,
    require_close,
    require_equal,
)

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import StepKind
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host
from wisp_runtime.ops.cuda.recurrent.delta_rule import DeltaInputs, DeltaRule
from wisp_runtime.ops.reference import recurrent

HALF_ULP = 2**-8 * (1 + 1e-3)  # of bf16
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
    """A step with random convolved channels, gates and states; ``slots`` of them."""

    def __init__(
        self,
        spec: DeltaNetSpec,
        sequences: list[Tokens],
        *,
        seed: int = 0,
        slots: int = 40,
        kind: StepKind | None = None,
    ) -> None:
        random, tokens = np.random.default_rng(seed), sum(sequence.count for sequence in sequences)
        self.spec, self.sequences, self.host_batch = spec, sequences, recurrent_batch(sequences)
        self.batch = recurrent_batch(sequences, kind=kind, put=to_device)
        self.weights, gates = delta_weights(spec, seed), delta_gates(spec, tokens, seed)
        values = spec.value_heads * spec.value_size
        qkv = random.standard_normal((tokens, spec.conv_size)).astype(BF16)
        self.z = random.standard_normal((tokens, values)).astype(BF16)
        self.states, self.before = states_on_device(random, slots, *spec.cache().shapes[0])
        self.wanted = self.before.astype(np.float64)
        self.expected = delta_rule(qkv, gates, self.weights, spec, self.host_batch, self.wanted)
        names = "conv", "decay", "step_bias", "norm"
        on_device = {name: to_device(getattr(self.weights, name)) for name in names}
        arrays = (to_device(array) for array in (qkv, gates, self.z))
        self.given = DeltaInputs(*arrays, replace(self.weights, **on_device), spec, self.batch)
        self.out = full_nan((tokens, values), BF16)

    def decode(self, device, *, has_norm: bool = False) -> None:
        DeltaRule(device).decode(self.given, self.states, self.out, has_norm=has_norm)

    def prefill(self, device, *, min_tokens: int = 2, warps: int | None = None) -> None:
        DeltaRule(device, warps=warps).prefill(self.given, self.states, self.out, min_tokens=min_tokens)

    def check(self, counts: range, *, state_error: float, has_norm: bool = False) -> None:
        """Compare the rows and states of sequences with so many tokens; the others are as they were."""
        expected, got = self.expected, to_host(self.out).astype(np.float64).reshape(self.expected.shape)
        if has_norm:
            z = self.z.astype(np.float64).reshape(expected.shape)
            expected = recurrent.gated_norm(expected, z, self.weights.norm, eps=self.weights.eps)
        states, untouched = to_host(self.states), set(range(len(self.before)))
        for part, slot, _ in recurrent.sequences(self.host_batch):
            if slot < 0 or part.stop - part.start not in counts:
                assert np.isnan(got[part]).all()
                continue
            untouched.discard(slot)
            size = np.abs(expected[part]).max(axis=-1, keepdims=True)
            require_close("o", got[part], expected[part], size, HALF_ULP + 1e-4)
            size = np.abs(self.wanted[slot]).max(axis=(1, 2), keepdims=True)
            require_close(f"state {slot}", states[slot], self.wanted[slot], size, state_error)
        kept = sorted(untouched)
        require_equal("states of others", states[kept], self.before[kept])


def bits(array: cp.ndarray) -> np.ndarray:
    """Return an array's bits on the host."""
    return to_host(array).view(np.uint8)
