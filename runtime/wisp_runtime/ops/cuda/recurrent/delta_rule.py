"""Gated delta rule on the GPU: a token a sequence by one kernel, prompts in chunks of 64 tokens by two."""

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
from wisp_runtime.ops.cuda.recurrent.conv import check_batch, check_rows, check_slots
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights

_OP = "delta_net"
KERNELS = ("delta_decode", "delta_chunks", "delta_scan")


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What the recurrence of a step reads.

    Attributes:
        qkv: ``[N, C]`` bf16, contiguous: convolved Q, K and V.
        gates: ``[N, 2 Hv]`` bf16, rows apart.
        z: ``[N, Hv Dv]`` bf16, rows apart.
        weights, spec: those of the layer.
        batch: the step.
    """

    qkv: Array
    gates: Array
    z: Array
    weights: DeltaNetWeights
    spec: DeltaNetSpec
    batch: Batch


class DeltaRule:
    """Read and update states.

    Args:
        device: the GPU.
        warps: warps of a block of the scan that compute; None: as many as fill the GPU.
    """

    def __init__(self, device: Gpu, *, warps: int | None = None) -> None:
        self._device, self._warps = device, warps
        self._decode = device.kernels.get("delta_decode", "delta_decode")
        self._chunks = device.kernels.get("delta_chunks", "delta_chunks")
        entries = arguments.SCAN_WARPS
        self._scan = {count: device.kernels.get("delta_scan", f"delta_scan_{count}") for count in entries}
        self._shapes: dict[object, DeltaShape] = {}

    def decode(self, given: DeltaInputs, states: Array, out: Array, *, has_norm: bool) -> None:
        """Compute the sequences with one token.

        Args:
            states: ``[slots, Hv, Dk, Dv]`` float32, slots apart; updated in place.
            out: ``[N, Hv Dv]`` bf16.
            has_norm: whether ``out`` takes the gated norm of o; else o.
        """
        batch, weights = given.batch, given.weights
        shape = self._shape(given, states, out, min_tokens=2)
        self._decode.launch(
            (given.spec.value_heads, len(batch.context_lengths_host)),
            arguments.DECODE_THREADS,
            given.qkv,
            given.gates,
            given.z,
            weights.decay,
            weights.step_bias,
            weights.norm if has_norm else None,
            states,
            batch.query_starts,
            batch.positions,
            batch.state_slots,
            out,
            shape,
            shared_bytes=arguments.DECODE_SHARED_BYTES,
        )

    def prefill(self, given: DeltaInputs, states: Array, out: Array, *, min_tokens: int) -> None:
        """Compute the sequences with at least ``min_tokens`` tokens, in chunks; ``out`` takes o."""
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
        sizes = given.qkv.shape, given.gates.strides, given.z.strides, states.shape, states.strides
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
            strides = Strides(
                given.qkv.shape[1],
                given.gates.strides[0] // 2,
                given.z.strides[0] // 2,
                states.strides[0] // 4,
            )
            shape = arguments.delta_shape(given.spec, strides, eps=given.weights.eps, min_tokens=min_tokens)
            remember(self._shapes, key, shape)
        return shape


def _check(given: DeltaInputs, states: Array, out: Array) -> None:
    spec, weights, tokens = given.spec, given.weights, len(given.qkv)
    heads, sizes = spec.value_heads, (spec.key_size, spec.value_size)
    for name, size in zip(("Dk", "Dv"), sizes, strict=True):
        fits = size % 8 == 0 and 0 < size <= MAX_SIZE
        require_true(fits, f"{_OP}: {name} is {size}, must be a multiple of 8 up to {MAX_SIZE}")
    require_true(heads % spec.key_heads == 0, f"{_OP}: {heads} value heads of {spec.key_heads} key heads")
    require(_OP, "qkv", given.qkv, (tokens, spec.conv_size), BF16)
    width = heads * spec.value_size
    gates = given.gates
    is_rows = gates.shape == (tokens, 2 * heads) and gates.dtype == BF16 and gates.strides[1] == 2
    require_true(is_rows, f"{_OP}: gates is {list(gates.shape)} {gates.dtype}, must be rows of 2 Hv, bf16")
    check_rows(_OP, "z", given.z, (tokens, width))
    for name in ("decay", "step_bias"):
        require(_OP, name, getattr(weights, name), (heads,), np.float32)
    require(_OP, "norm", weights.norm, (spec.value_size,), np.float32)
    check_slots(_OP, "states", states, (heads, *sizes), np.float32)
    require(_OP, "out", out, (tokens, width), BF16)
    check_batch(_OP, given.batch, tokens)
