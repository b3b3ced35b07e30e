"""Selective scan of Mamba-2 on the GPU: one token of a sequence, or chunks of 64 of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.recurrent import mamba_arguments as arguments
from wisp_runtime.ops.cuda.recurrent.conv import check_batch, check_slots
from wisp_runtime.ops.cuda.recurrent.mamba_arguments import MambaShape
from wisp_runtime.ops.protocol.recurrent import MambaWeights

_OP = "mamba"


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """Inputs of the scan of a step.

    Attributes:
        xbc: ``[N, C]`` bf16, contiguous: convolved x, B and C.
        steps: ``[N, H]`` bf16, rows apart: projected time steps, without their factor.
        weights, spec: those of the layer.
        batch: the step.
    """

    xbc: Array
    steps: Array
    weights: MambaWeights
    spec: MambaSpec
    batch: Batch


class SelectiveScan:
    """Read and update states.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._shapes: dict[object, MambaShape] = {}

    def decode(self, given: ScanInputs, states: Array, out: Array) -> None:
        """Compute the sequences with one token.

        Args:
            states: ``[slots, H, Dh, S]`` float32, slots apart; updated in place.
            out: ``[N, H Dh]`` bf16.
        """
        op, spec = "mamba_decode", given.spec
        kernel = self._device.kernels.get(op, arguments.entry(op, spec))
        grid = spec.heads, len(given.batch.context_lengths_host)
        shape = self._shape(given, states, out, min_tokens=2)
        kernel.launch(grid, arguments.DECODE_THREADS, *_arrays(given, states, out), shape)

    def prefill(self, given: ScanInputs, states: Array, out: Array, *, min_tokens: int) -> None:
        """Compute the sequences with at least ``min_tokens`` tokens, in chunks; arguments as above."""
        op, spec = "mamba_scan", given.spec
        kernel = self._device.kernels.get(op, arguments.entry(op, spec))
        stages = arguments.scan_stages(spec, self._device.shared_bytes)
        shape = self._shape(given, states, out, min_tokens=min_tokens)
        blocks, warps = arguments.scan_blocks(spec)
        kernel.launch(
            (spec.heads, len(given.batch.context_lengths_host), blocks),
            32 * (warps + 1),
            *_arrays(given, states, out),
            shape,
            np.int32(stages),
            shared_bytes=arguments.scan_shared_bytes(spec, stages),
        )

    def _shape(self, given: ScanInputs, states: Array, out: Array, *, min_tokens: int) -> MambaShape:
        spec, sequences = given.spec, len(given.batch.context_lengths_host)
        sizes = given.xbc.shape, given.steps.strides, states.shape, states.strides, out.shape
        key = sizes, spec, sequences, min_tokens
        shape = self._shapes.get(key)
        if shape is None:
            _check(given, states, out)
            strides = given.xbc.shape[1], given.steps.strides[0] // 2, states.strides[0] // 4
            heads = spec.heads, spec.head_size, spec.state_size, spec.groups
            shape = remember(self._shapes, key, MambaShape(*strides, *heads, min_tokens, spec.scales[4]))
        return shape


def _arrays(given: ScanInputs, states: Array, out: Array) -> tuple[Array, ...]:
    weights, batch = given.weights, given.batch
    of_batch = batch.query_starts, batch.positions, batch.state_slots
    return given.xbc, given.steps, weights.decay, weights.step_bias, weights.skip, states, *of_batch, out


def _check(given: ScanInputs, states: Array, out: Array) -> None:
    spec, weights, tokens, steps = given.spec, given.weights, len(given.xbc), given.steps
    fits = spec.head_size % 8 == 0 and spec.head_size <= 128
    require_true(fits, f"{_OP}: Dh is {spec.head_size}, must be a multiple of 8 up to 128")
    fits = spec.state_size % 8 == 0 and spec.state_size <= 2 * arguments.WIDE_STATES
    require_true(fits, f"{_OP}: S is {spec.state_size}, must be a multiple of 8 up to 256")
    require(_OP, "xbc", given.xbc, (tokens, spec.conv_size), BF16)
    is_rows = steps.shape == (tokens, spec.heads) and steps.dtype == BF16 and steps.strides[1] == 2
    require_true(is_rows, f"{_OP}: steps is {list(steps.shape)} {steps.dtype}, must be rows of H, bf16")
    for name in ("decay", "step_bias", "skip"):
        require(_OP, name, getattr(weights, name), (spec.heads,), np.float32)
    check_slots(_OP, "states", states, (spec.heads, spec.head_size, spec.state_size), np.float32)
    require(_OP, "out", out, (tokens, spec.inner), BF16)
    check_batch(_OP, given.batch, tokens)
