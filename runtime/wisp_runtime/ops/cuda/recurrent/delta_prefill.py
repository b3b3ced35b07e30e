"""Gated delta rule of prompts on the GPU, in chunks of 64 tokens, by two kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.recurrent import chunk_buffers, max_chunks
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.recurrent import arguments
from wisp_runtime.ops.cuda.recurrent.arguments import MAX_SIZE, DeltaShape, Strides
from wisp_runtime.ops.cuda.recurrent.conv import check_batch, check_slots
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights

_OP = "delta_net"
KERNELS = ("delta_chunks", "delta_scan")


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Inputs of the recurrence of a step.

    Attributes:
        qkv: ``[N, C]`` bf16, contiguous: convolved Q, K and V.
        gates: ``[N, 2 Hv]`` bf16, rows apart.
        weights, spec: those of the layer.
        batch: the step.
    """

    qkv: Array
    gates: Array
    weights: DeltaNetWeights
    spec: DeltaNetSpec
    batch: Batch


class DeltaPrefill:
    """Read and update the states of sequences with several tokens.

    Args:
        device: the GPU.
        warps: warps of a block of the scan that compute; None: as many as fill the GPU.
    """

    def __init__(self, device: Gpu, *, warps: int | None = None) -> None:
        self._device, self._warps = device, warps
        self._chunks = device.kernels.get("delta_chunks", "delta_chunks")
        entries = arguments.SCAN_WARPS
        self._scan = {count: device.kernels.get("delta_scan", f"delta_scan_{count}") for count in entries}
        self._shapes: dict[object, DeltaShape] = {}

    def __call__(self, given: DeltaInputs, states: Array, out: Array, *, min_tokens: int) -> None:
        """Compute the sequences with at least ``min_tokens`` tokens.

        Args:
            states: ``[slots, Hv, Dk, Dv]`` float32, slots apart; updated in place.
            out: ``[N, Hv Dv]`` bf16, takes o.
        """
        batch, heads = given.batch, given.spec.value_heads
        capacity = max_chunks(len(given.qkv), len(batch.context_lengths_host))
        buffers = chunk_buffers(capacity, heads)
        shape = self._shape(given, states, out, min_tokens=min_tokens)
        for taken in arguments.rounds(batch.query_starts_host, min_tokens, capacity):
            self._round(given, states, out, shape, taken, buffers)

    def _round(
        self,
        given: DeltaInputs,
        states: Array,
        out: Array,
        shape: DeltaShape,
        taken: arguments.Round,
        buffers: Sequence[Buffer],
    ) -> None:
        spec, weights, batch = given.spec, given.weights, given.batch
        matrices, factors = (self._device.workspace.view(buffer) for buffer in buffers)
        sequences = np.int32(taken.first), np.int32(taken.last)
        self._chunks.launch(
            (taken.chunks, spec.key_heads),
            arguments.CHUNK_THREADS,
            given.qkv,
            given.gates,
            weights.decay,
            weights.step_bias,
            batch.query_starts,
            matrices,
            factors,
            shape,
            *sequences,
            shared_bytes=arguments.CHUNK_SHARED_BYTES,
        )
        sizes = spec.value_heads, spec.value_size
        warps = self._warps or arguments.scan_warps(taken.prompts, *sizes, self._device.sm_count)
        stages = arguments.scan_stages(warps, self._device.shared_bytes)
        self._scan[warps].launch(
            (-(-spec.value_size // (16 * warps)), spec.value_heads, taken.last - taken.first),
            32 * (warps + 1),
            given.qkv,
            batch.query_starts,
            batch.positions,
            batch.state_slots,
            matrices,
            factors,
            states,
            out,
            shape,
            *sequences,
            np.int32(stages),
            shared_bytes=arguments.scan_shared_bytes(warps, stages),
        )

    def _shape(self, given: DeltaInputs, states: Array, out: Array, *, min_tokens: int) -> DeltaShape:
        sizes = given.qkv.shape, given.gates.strides, states.shape, states.strides
        key = (
            *sizes,
            out.shape,
            given.spec,
            given.weights.eps,
            len(given.batch.context_lengths_host),
            min_tokens,
        )
        shape = self._shapes.get(key)
        if shape is None:
            _check(given, states, out)
            strides = Strides(given.qkv.shape[1], given.gates.strides[0] // 2, states.strides[0] // 4)
            shape = arguments.delta_shape(given.spec, strides, eps=given.weights.eps, min_tokens=min_tokens)
            remember(self._shapes, key, shape)
        return shape


def _check(given: DeltaInputs, states: Array, out: Array) -> None:
    spec, tokens = given.spec, len(given.qkv)
    require(_OP, "qkv", given.qkv, (tokens, spec.conv_size), BF16)
    check_gates(_OP, given.gates, tokens, spec)
    check_layer(_OP, spec, given.weights, states)
    require(_OP, "out", out, (tokens, spec.value_heads * spec.value_size), BF16)
    check_batch(_OP, given.batch, tokens)


def check_gates(op: str, gates: Array, tokens: int, spec: DeltaNetSpec) -> None:
    """Require rows of b and a of all value heads."""
    columns = 2 * spec.value_heads
    is_rows = gates.shape == (tokens, columns) and gates.dtype == BF16 and gates.strides[1] == 2
    require_true(is_rows, f"{op}: gates is {list(gates.shape)} {gates.dtype}, must be rows of 2 Hv, bf16")


def check_layer(op: str, spec: DeltaNetSpec, weights: DeltaNetWeights, states: Array) -> None:
    """Require sizes that the kernels compute, and weights and states of these."""
    heads, sizes = spec.value_heads, (spec.key_size, spec.value_size)
    for name, size in zip(("Dk", "Dv"), sizes, strict=True):
        fits = size % 8 == 0 and 0 < size <= MAX_SIZE
        require_true(fits, f"{op}: {name} is {size}, must be a multiple of 8 up to {MAX_SIZE}")
    require_true(heads % spec.key_heads == 0, f"{op}: {heads} value heads of {spec.key_heads} key heads")
    for name in ("decay", "step_bias"):
        require(op, name, getattr(weights, name), (heads,), np.float32)
    require(op, "norm", weights.norm, (spec.value_size,), np.float32)
    check_slots(op, "states", states, (heads, *sizes), np.float32)
