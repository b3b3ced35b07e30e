"""Kernel arguments of the fused QKV + RoPE GEMM: head counts, RoPE table, KV-cache pointers."""

from __future__ import annotations

import ctypes
from typing import Any

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.attention.rope import check_step
from wisp_runtime.ops.cuda.device.checks import remember, require_true
from wisp_runtime.ops.cuda.gemm.tiling import ROW_TILE
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

_OP = "linear_rotary"


class Arguments(ctypes.Structure):
    """``RotaryArgs`` of ``rotary_epilogue.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "positions", "slots", "keys", "values")),
        *((name, ctypes.c_int32) for name in ("query_heads", "kv_heads", "head_size")),
        *((name, ctypes.c_int32) for name in ("known_positions", "block_tokens")),
    )


class RotaryArguments:
    """Arguments by shapes; each set of shapes is checked once."""

    def __init__(self) -> None:
        self._known: dict[Any, Arguments] = {}

    def of(
        self,
        tokens: int,
        weight: PackedMatrix | QuantizedStorage,
        heads: tuple[int, int, int],
        cosines: Array,
        sines: Array,
        positions: Array,
        slots: Array,
        keys: Array,
        values: Array,
    ) -> Arguments:
        """Return the arguments of a launch; the next call may change them.

        Raises:
            ShapeError: an array differs from what :meth:`.linear.Linear.rotary` says.
        """
        shapes = cosines.shape, positions.shape, slots.shape, keys.shape
        key = tokens, heads, *shapes, weight.outputs, weight.permutation
        arguments = self._known.get(key)
        if arguments is None:
            check_step(_OP, heads, cosines, sines, positions, slots, keys, values)
            _check(weight, heads, cosines)
            message = f"{_OP}: {len(positions)} positions for {tokens} tokens of x"
            require_true(len(positions) == tokens, message)
            counts = *heads, len(cosines), keys.shape[2]
            arguments = remember(self._known, key, Arguments(0, 0, 0, 0, 0, 0, *counts))
        arguments.cosines, arguments.sines = cosines.data.ptr, sines.data.ptr
        arguments.positions, arguments.slots = positions.data.ptr, slots.data.ptr
        arguments.keys, arguments.values = keys.data.ptr, values.data.ptr
        return arguments


def _check(weight: PackedMatrix | QuantizedStorage, heads: tuple[int, int, int], cosines: Array) -> None:
    queries, kv_heads, size = heads
    require_true(size % ROW_TILE == 0, f"{_OP}: Dh is {size}, must be a multiple of {ROW_TILE}")
    rotary_size = 2 * cosines.shape[1]
    require_true(rotary_size == size, f"{_OP}: {rotary_size} channels rotate, must be all {size}")
    permutation = "plain" if size == ROW_TILE else f"rope_interleaved_{size}"
    message = f"{_OP}: the matrix's rows are {weight.permutation}, must be {permutation}"
    require_true(weight.permutation == permutation, message)
    rows = (queries + 2 * kv_heads) * size
    require_true(weight.outputs == rows, f"{_OP}: the matrix has {weight.outputs} rows, must be {rows}")
