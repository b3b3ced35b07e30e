"""Causal convolution of a recurrent mixer on the GPU, whose last inputs are a state of each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.recurrent.arguments import ConvShape

_OP = "causal_conv"
TAPS = 4
_THREADS = constants()["conv_threads"]
_TILE_TOKENS = 16  # of a step in which some sequence has several tokens


class Factors(NamedTuple):
    """Factors of three parts of the channels, and the ends of the first two, multiples of 8."""

    values: tuple[float, ...] = (1.0, 1.0, 1.0)
    ends: tuple[int, int] = (0, 0)


NO_FACTORS = Factors()


@dataclass(frozen=True, slots=True)
class _Plan:
    grid: tuple[int, int]
    shape: ConvShape
    out_shape: tuple[int, int]


class CausalConv:
    """Convolve.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernel = device.kernels.get(_OP)
        self._workspace = device.workspace
        self._plans: dict[object, _Plan] = {}

    def __call__(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        batch: Batch,
        inputs: Array,
        *,
        has_prefills: bool,
        min_tokens: int = 1,
        factors: Factors = NO_FACTORS,
        out_name: str,
    ) -> Array:
        """Convolve the first C columns of ``x``, apply SiLU, and update the sequences' last inputs.

        Args:
            x: ``[N, at least C]`` bf16, rows apart by a multiple of 8 elements.
            weight: ``[C, 4]`` bf16, C a multiple of 8.
            bias: ``[C]`` bf16, or None.
            batch: the step; sequences with slot -1 are left out.
            inputs: ``[slots, 3, C]`` bf16, slots apart by a multiple of 8 elements; updated in place.
            has_prefills: whether any sequence has several tokens.
            min_tokens: fewest tokens of a sequence that is convolved; the rows and inputs of others stay.
            factors: factors of the channels' sums, which their last inputs are without.
            out_name: buffer of the workspace that takes the result.

        Returns:
            ``[N, C]`` bf16.

        Raises:
            ShapeError: an array differs from the above.
        """
        key = (
            x.shape,
            x.strides,
            weight.shape,
            bias is None,
            inputs.strides,
            len(batch.context_lengths_host),
            has_prefills,
            min_tokens,
            factors,
        )
        plan = self._plans.get(key)
        if plan is None:
            _check(x, weight, bias, batch, inputs)
            tile = _TILE_TOKENS if has_prefills else 1
            made = _plan(x, weight, batch, inputs, (tile, min_tokens), factors)
            plan = remember(self._plans, key, made)
        out = self._workspace.array(out_name, plan.out_shape, BF16)
        of_batch = batch.query_starts, batch.positions, batch.state_slots
        self._kernel.launch(plan.grid, _THREADS, x, weight, bias, inputs, *of_batch, out, plan.shape)
        return out


def _plan(
    x: Array, weight: Array, batch: Batch, inputs: Array, counts: tuple[int, int], factors: Factors
) -> _Plan:
    """Return the plan of a step; ``counts``: tokens of a tile, and fewest tokens of a sequence."""
    tokens, channels = len(x), len(weight)
    strides = x.strides[0] // 2, inputs.strides[0] // 2
    sizes = *strides, tokens, len(batch.context_lengths_host), channels, *counts
    shape = ConvShape(*sizes, factors.ends, factors.values)
    return _Plan((-(-channels // (8 * _THREADS)), -(-tokens // counts[0])), shape, (tokens, channels))


def _check(x: Array, weight: Array, bias: Array | None, batch: Batch, inputs: Array) -> None:
    tokens, channels = len(x), len(weight)
    require_true(tokens > 0, f"{_OP}: no tokens; a step has at least one")
    fits = channels % 8 == 0 and channels <= x.shape[1]
    require_true(fits, f"{_OP}: C is {channels}, must be a multiple of 8, as x {list(x.shape)} has columns")
    check_rows(_OP, "x", x, x.shape)
    require(_OP, "weight", weight, (channels, TAPS), BF16)
    if bias is not None:
        require(_OP, "bias", bias, (channels,), BF16)
    check_slots(_OP, "inputs", inputs, (TAPS - 1, channels), BF16)
    check_batch(_OP, batch, tokens)


def check_rows(op: str, name: str, array: Array, shape: tuple[int, int]) -> None:
    """Require rows of bf16, each contiguous and at a multiple of 16 bytes."""
    is_rows = array.shape == shape and array.dtype == BF16 and array.strides[1] == 2
    given = f"{list(array.shape)} {array.dtype} with strides {array.strides}"
    message = f"{op}: {name} is {given}, must be {list(shape)} bf16, rows 16 bytes apart or a multiple"
    require_true(is_rows and array.strides[0] % 16 == 0, message)
    require_aligned(op, name, array)


def check_slots(op: str, name: str, array: Array, shape: tuple[int, ...], dtype: object) -> None:
    """Require ``[slots, *shape]``, each slot contiguous and at a multiple of 16 bytes."""
    is_state = array.shape[1:] == shape and array.dtype == dtype and array.strides[0] % 16 == 0
    message = f"{op}: {name} is {list(array.shape)} {array.dtype}, must be {['slots', *shape]} {dtype}"
    require_true(is_state and array[0].flags.c_contiguous, message + ", each slot contiguous")
    require_aligned(op, name, array)


def check_batch(op: str, batch: Batch, tokens: int) -> None:
    """Require the arrays that recurrent kernels read of a step."""
    require_true(batch.state_slots is not None, f"{op}: state_slots is None, and the layer has a state")
    assert batch.state_slots is not None
    sequences = len(batch.context_lengths_host)
    require(op, "state_slots", batch.state_slots, (sequences,), np.int32)
    require(op, "query_starts", batch.query_starts, (sequences + 1,), np.int32)
    require(op, "positions", batch.positions, (tokens,), np.int32)
