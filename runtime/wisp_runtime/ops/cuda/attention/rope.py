"""RoPE on the GPU, fused with QK-norm before it and the write to the KV cache after it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import cupy as cp
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants

_THREADS = constants()["rope_threads"]
_MAX_HEAD_SIZE = 256
_OP = "rope_write_kv"


class _Shape(ctypes.Structure):
    """``Shape`` of rope_write_kv.cu."""

    _fields_ = (
        ("row_stride", ctypes.c_int64),
        *(
            (name, ctypes.c_int32)
            for name in ("tokens", "query_heads", "kv_heads", "head_size", "rotary_size")
        ),
        *((name, ctypes.c_int32) for name in ("positions", "block_tokens", "lanes", "interleaved")),
        ("eps", ctypes.c_float),
        ("norm_offset", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    kernel: Kernel
    grid: tuple[int]
    shape: _Shape
    q_shape: tuple[int, int, int]
    q_strides: tuple[int, int, int]


class Rope:
    """Apply RoPE to queries and keys, and store keys and values.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._plans: dict[object, _Plan] = {}

    def __call__(
        self,
        qkv: Array,
        heads: tuple[int, int, int],
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        cosines: Array,
        sines: Array,
        positions: Array,
        slots: Array,
        keys: Array,
        values: Array,
        *,
        is_interleaved: bool = False,
        is_zero_centred: bool = False,
    ) -> Array:
        """Normalise q and k by head if there are norms, apply RoPE to both, write k and v to a layer's cache.

        Args:
            qkv: ``[N, (Hq + 2 Hkv) * Dh]`` bf16: q, k, v. q is overwritten. Rows may be apart, by a multiple
                of 8 elements.
            heads: ``(Hq, Hkv, Dh)``; Dh a multiple of 8 up to 256.
            q_norm, k_norm: ``[Dh]`` bf16, weights of the norms, or None.
            eps: added to the mean square of the norms.
            cosines, sines: ``[S, R / 2]`` float32 of every position; R a multiple of 8 up to Dh, 0 of
                heads without positions.
            positions: ``[N]`` int32, below S.
            slots: ``[N]`` int64, ``block * Tb + offset``; -1 writes nothing.
            keys, values: ``[P, Hkv, Tb, Dh]`` bf16.
            is_interleaved: whether columns of ``qkv`` lie as rows of a ``rope_interleaved_<Dh>`` matrix; the
                results do not.
            is_zero_centred: whether the norms' factor of a channel is one more than its weight.

        Returns:
            The rotated queries, ``[N, Hq, Dh]``: a view of ``qkv``.

        Raises:
            ShapeError: an array differs from the above.
        """
        norms = q_norm, k_norm
        has_norms = q_norm is not None, k_norm is not None
        shapes = qkv.shape, qkv.strides, cosines.shape, positions.shape, slots.shape, keys.shape
        key = heads, has_norms, eps, *shapes, is_interleaved, is_zero_centred
        plan = self._plans.get(key)
        if plan is None:
            check_step(_OP, heads, cosines, sines, positions, slots, keys, values)
            _check_heads(qkv, len(positions), heads, norms, cosines, is_interleaved)
            options = is_interleaved, eps, is_zero_centred
            plan = self._plan(qkv, heads, cosines, positions, keys, options)
            remember(self._plans, key, plan)
        arrays = qkv, *norms, cosines, sines, positions, slots, keys, values
        plan.kernel.launch(plan.grid, _THREADS, *arrays, plan.shape)
        return cp.ndarray(plan.q_shape, BF16, memptr=qkv.data, strides=plan.q_strides)

    def _plan(
        self,
        qkv: Array,
        heads: tuple[int, int, int],
        cosines: Array,
        positions: Array,
        keys: Array,
        options: tuple[bool, float, bool],
    ) -> _Plan:
        query_heads, kv_heads, size = heads
        tokens, rotary_size = len(positions), 2 * cosines.shape[1]
        is_narrow = rotary_size % 16 != 0
        lanes = _lanes(size, 4 if is_narrow else 8)
        all_heads = query_heads + 2 * kv_heads
        shape = _Shape(
            qkv.strides[0] // BF16.itemsize,
            *(tokens, query_heads, kv_heads, size, rotary_size),
            *(len(cosines), keys.shape[2], lanes, *options),
        )
        kernel = self._device.kernels.get(_OP, _OP + "_narrow" if is_narrow else _OP)
        grid = (-(-tokens * all_heads * lanes // _THREADS),)
        strides = qkv.strides[0], 2 * size, 2
        return _Plan(kernel, grid, shape, (tokens, query_heads, size), strides)


def _lanes(head_size: int, chunk: int) -> int:
    """Return how many threads hold a head, two chunks each: a power of two."""
    return 1 << (-(-head_size // (2 * chunk)) - 1).bit_length()


def _check_heads(
    qkv: Array,
    tokens: int,
    heads: tuple[int, int, int],
    norms: tuple[Array | None, Array | None],
    cosines: Array,
    is_interleaved: bool,
) -> None:
    (queries, kv_heads, size), rotary_size = heads, 2 * cosines.shape[1]
    shape = tokens, (queries + 2 * kv_heads) * size
    is_dense = qkv.dtype == BF16 and qkv.strides[-1] == BF16.itemsize and qkv.strides[0] % 16 == 0
    found = f"{list(qkv.shape)} {qkv.dtype} with strides {qkv.strides}"
    fits = qkv.shape == shape and is_dense
    require_true(fits, f"{_OP}: qkv is {found}, must be rows of heads, {list(shape)} bf16")
    require_aligned(_OP, "qkv", qkv)
    given = {name: norm for name, norm in zip(("q_norm", "k_norm"), norms, strict=True) if norm is not None}
    for name, norm in given.items():
        require(_OP, name, norm, (size,), BF16)
    can_interleave = size % 64 == 0 and rotary_size == size and not given
    message = f"{_OP}: heads of {size}, of which {rotary_size} channels rotate, are not interleaved"
    require_true(can_interleave or not is_interleaved, message)


def check_step(
    op: str,
    heads: tuple[int, int, int],
    cosines: Array,
    sines: Array,
    positions: Array,
    slots: Array,
    keys: Array,
    values: Array,
) -> None:
    """Require a step's arrays as :meth:`Rope.__call__` describes them, all but ``qkv``.

    Raises:
        ShapeError: an array differs from it.
    """
    (_, kv_heads, size), rotary_size = heads, 2 * cosines.shape[1]
    fits = size % 8 == 0 and 0 < size <= _MAX_HEAD_SIZE
    require_true(fits, f"{op}: Dh is {size}, must be a multiple of 8 up to {_MAX_HEAD_SIZE}")
    fits = rotary_size % 8 == 0 and rotary_size <= size
    require_true(fits, f"{op}: {rotary_size} channels rotate, must be a multiple of 8 up to Dh, {size}")
    require_true(keys.ndim == 4, f"{op}: keys is {list(keys.shape)}, must be [P, Hkv, Tb, Dh]")
    blocks, _, block_tokens, _ = keys.shape
    fits = blocks * block_tokens < 2**31
    require_true(fits, f"{op}: {blocks} blocks of {block_tokens} tokens; slots must be fewer than 2^31")
    tokens = len(positions)
    require_true(tokens > 0, f"{op}: no tokens; a step has at least one")
    require(op, "cosines", cosines, cosines.shape, np.float32)
    require(op, "sines", sines, cosines.shape, np.float32)
    require(op, "positions", positions, (tokens,), np.int32)
    require(op, "slots", slots, (tokens,), np.int64)
    require(op, "keys", keys, (blocks, kv_heads, block_tokens, size), BF16)
    require(op, "values", values, keys.shape, BF16)
