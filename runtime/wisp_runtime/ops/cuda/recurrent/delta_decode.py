"""Gated DeltaNet of a token a sequence on the GPU, from its projections to the gated norm: one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.memory.buffers.recurrent import decode_arrivals
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.recurrent import arguments
from wisp_runtime.ops.cuda.recurrent.arguments import DecodeShape, Strides
from wisp_runtime.ops.cuda.recurrent.conv import TAPS, check_batch, check_rows, check_slots
from wisp_runtime.ops.cuda.recurrent.delta_prefill import check_gates, check_layer
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights

_OP = "delta_decode"


@dataclass(frozen=True, slots=True)
class GateRows:
    """The GEMM whose result are gates, not yet computed.

    Attributes:
        x: ``[N, D]`` bf16, rows apart.
        weight: ``[2 Hv, D]``, plain.
    """

    x: Array
    weight: PackedMatrix


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of a step, beside states.

    Attributes:
        projected: ``[N, C + Hv Dv]`` bf16, rows apart: Q, K, V, Z.
        gates: ``[N, 2 Hv]`` bf16, rows apart, or how to compute them.
        weights, spec: those of the layer.
        batch: the step.
    """

    projected: Array
    gates: Array | GateRows
    weights: DeltaNetWeights
    spec: DeltaNetSpec
    batch: Batch


class DeltaDecode:
    """Compute the sequences with one token.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._workspace, self._kernel = device.workspace, device.kernels.get(_OP)
        self._shapes: dict[object, DecodeShape] = {}

    def __call__(
        self, given: DecodeInputs, states: Array, inputs: Array, out: Array, *, has_norm: bool
    ) -> None:
        """Convolve, update the states, and read them.

        Args:
            states: ``[slots, Hv, Dk, Dv]`` float32, slots apart; updated in place.
            inputs: ``[slots, 3, C]`` bf16, slots apart; updated in place.
            out: ``[N, Hv Dv]`` bf16; rows of other sequences stay as they are.
            has_norm: whether ``out`` takes the gated norm of o; else o.

        Raises:
            ShapeError: an array differs from the above.
        """
        batch, weights, spec, gates = given.batch, given.weights, given.spec, given.gates
        shape, sequences = self._shape(given, states, inputs, out), len(batch.context_lengths_host)
        arrivals = decode_arrivals(sequences, spec.key_heads)
        of_gates = (gates.x, gates.weight.storage) if isinstance(gates, GateRows) else (gates, None)
        self._kernel.launch(
            (spec.value_heads, sequences),
            arguments.DECODE_THREADS,
            given.projected,
            weights.conv,
            *of_gates,
            weights.decay,
            weights.step_bias,
            weights.norm if has_norm else None,
            states,
            inputs,
            self._workspace.zeroed(arrivals.name, arrivals.shape, arrivals.dtype),
            batch.query_starts,
            batch.positions,
            batch.state_slots,
            out,
            shape,
            shared_bytes=arguments.DECODE_SHARED_BYTES,
        )

    def _shape(self, given: DecodeInputs, states: Array, inputs: Array, out: Array) -> DecodeShape:
        gates = given.gates.x if isinstance(given.gates, GateRows) else given.gates
        arrays = given.projected, gates, states, inputs
        sequences = len(given.batch.context_lengths_host)
        of_layer = given.spec, given.weights.eps, isinstance(given.gates, GateRows)
        key = (*((array.shape, array.strides) for array in arrays), out.shape, sequences, *of_layer)
        shape = self._shapes.get(key)
        if shape is None:
            _check(given, states, inputs, out)
            of_rows = given.projected.strides[0] // 2, gates.strides[0] // 2
            strides = Strides(*of_rows, states.strides[0] // 4)
            delta = arguments.delta_shape(given.spec, strides, eps=given.weights.eps, min_tokens=2)
            shape = DecodeShape(delta, inputs.strides[0] // 2, gates.shape[1])
            remember(self._shapes, key, shape)
        return shape


def _check(given: DecodeInputs, states: Array, inputs: Array, out: Array) -> None:
    spec, tokens = given.spec, len(given.projected)
    values = spec.value_heads * spec.value_size
    check_rows(_OP, "projected", given.projected, (tokens, spec.conv_size + values))
    require(_OP, "conv", given.weights.conv, (spec.conv_size, TAPS), BF16)
    check_layer(_OP, spec, given.weights, states)
    check_slots(_OP, "inputs", inputs, (TAPS - 1, spec.conv_size), BF16)
    if isinstance(given.gates, GateRows):
        _check_gate_rows(given.gates, tokens, spec)
    else:
        check_gates(_OP, given.gates, tokens, spec)
    require(_OP, "out", out, (tokens, values), BF16)
    check_batch(_OP, given.batch, tokens)


def _check_gate_rows(gates: GateRows, tokens: int, spec: DeltaNetSpec) -> None:
    weight, outputs = gates.weight, 2 * spec.value_heads
    check_rows(_OP, "x", gates.x, (tokens, weight.inputs))
    fits = weight.outputs == outputs and weight.permutation == "plain" and weight.inputs % 8 == 0
    shape = f"[{weight.outputs}, {weight.inputs}] {weight.permutation}"
    require_true(fits, f"{_OP}: the gates' weight is {shape}, must be [{outputs}, D] plain, D % 8 == 0")
