"""Arguments of the recurrent kernels: sizes by value, shared memory, the sequences of a launch. Pure."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from wisp_plan.memory.buffers.recurrent import CHUNK_TOKENS
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.ops.cuda.device.manifest import constants

MAX_SIZE = constants()["delta_max_size"]
"""Channels of a head of K and V, at most."""

DECODE_THREADS = constants()["delta_decode_threads"]
DECODE_SHARED_BYTES = 10296
"""``Shared`` of delta_decode.cu."""

CHUNK_THREADS = 256
_SCORE_BYTES = 4 * CHUNK_TOKENS * (CHUNK_TOKENS + 4)
CHUNK_SHARED_BYTES = 4 * _SCORE_BYTES + 4 * 2 * CHUNK_TOKENS + 2 * 12 * CHUNK_TOKENS
"""``Shared`` of delta_chunks.cu."""

SCAN_WARPS = (2, 4, 8)
"""Warps of a block of delta_scan.cu that compute: an entry each."""

_STAGE_BYTES = 72464


class ConvShape(ctypes.Structure):
    """``Shape`` of causal_conv.cu."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("stride", "slot_stride")),
        *((name, ctypes.c_int32) for name in ("tokens", "sequences", "channels")),
        *((name, ctypes.c_int32) for name in ("tile_tokens", "min_tokens")),
        ("ends", ctypes.c_int32 * 2),
        ("factors", ctypes.c_float * 3),
    )


class DeltaShape(ctypes.Structure):
    """``DeltaShape`` of delta_gates.cuh."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("qkv_stride", "gate_stride", "slot_stride")),
        *((name, ctypes.c_int32) for name in ("key_heads", "value_heads", "key_size", "value_size")),
        ("min_tokens", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("scale", "eps")),
    )


class DecodeShape(ctypes.Structure):
    """``DecodeShape`` of delta_decode.cu."""

    _fields_ = (
        ("delta", DeltaShape),
        ("input_stride", ctypes.c_int64),
        ("columns", ctypes.c_int32),
    )


class NormShape(ctypes.Structure):
    """``Shape`` of gated_norm.cu."""

    _fields_ = (
        ("z_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("rows", "heads", "head_size", "lanes")),
        ("eps", ctypes.c_float),
    )


class Strides(NamedTuple):
    """Elements between rows of Q, K and V, and of gates, and between slots of states."""

    qkv: int
    gates: int
    slots: int


def delta_shape(spec: DeltaNetSpec, strides: Strides, *, eps: float, min_tokens: int) -> DeltaShape:
    """Return the sizes of a layer.

    Args:
        min_tokens: fewest tokens of a sequence that is computed in chunks; the others are decoded.
    """
    heads = spec.key_heads, spec.value_heads, spec.key_size, spec.value_size
    return DeltaShape(*strides, *heads, min_tokens, spec.key_size**-0.5, eps)


def norm_lanes(head_size: int) -> int:
    """Return the threads that hold a head, eight columns each: a power of two."""
    return 1 << (-(-head_size // 8) - 1).bit_length()


def scan_warps(sequences: int, heads: int, value_size: int, sm_count: int) -> int:
    """Return the warps of a block of delta_scan.cu: the fewest with which all blocks run at once.

    A block has a multiprocessor for itself, and its warps share what it copies.
    """
    slices = -(-value_size // 16)
    fitting = (warps for warps in SCAN_WARPS if sequences * heads * -(-slices // warps) <= sm_count)
    return next(fitting, SCAN_WARPS[-1])


def scan_shared_bytes(warps: int, stages: int) -> int:
    """Return the shared memory of a block of delta_scan.cu."""
    return stages * (_STAGE_BYTES + 2 * CHUNK_TOKENS * (16 * warps + 8))


def scan_stages(warps: int, shared_bytes: int) -> int:
    """Return how many chunks a block holds: two, or one where two do not fit ``shared_bytes``."""
    return 2 if scan_shared_bytes(warps, 2) <= shared_bytes else 1


class Round(NamedTuple):
    """Sequences ``first`` to ``last - 1``, computed at once, with so many chunks, of ``prompts`` of them."""

    first: int
    last: int
    chunks: int
    prompts: int


def rounds(starts: Sequence[int], min_tokens: int, max_chunks: int) -> list[Round]:
    """Split a step's sequences into rounds of at most ``max_chunks`` chunks, in order.

    Args:
        starts: first token of each sequence, and the end of the last.
        min_tokens: fewest tokens of a sequence that has chunks.
    """
    split: list[Round] = []
    for index, (begin, end) in enumerate(pairwise(starts)):
        if end - begin < min_tokens or end == begin:
            continue
        chunks = -(-(end - begin) // CHUNK_TOKENS)
        if split and split[-1].chunks + chunks <= max_chunks:
            last = split[-1]
            split[-1] = Round(last.first, index + 1, last.chunks + chunks, last.prompts + 1)
        else:
            split.append(Round(index, index + 1, chunks, 1))
    return split
