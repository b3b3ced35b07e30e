"""Arguments of Mamba-2's kernels: sizes by value, threads, shared memory. Pure."""

from __future__ import annotations

import ctypes

from wisp_plan.memory.buffers.recurrent import CHUNK_TOKENS
from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.ops.cuda.device.manifest import constants

DECODE_THREADS = constants()["mamba_decode_threads"]

WIDE_STATES = 128
"""States up to which the first entry of a kernel goes; the ``_256`` one goes to twice as many."""

_SCORE_BYTES = 2 * 2 * CHUNK_TOKENS * (CHUNK_TOKENS + 8)
_MAX_SCAN_WARPS = 7
_MAX_NORM_THREADS, _NORM_CHUNKS = constants()["norm_threads"], 4


class MambaShape(ctypes.Structure):
    """``MambaShape`` of mamba_shape.cuh."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("conv_stride", "step_stride", "slot_stride")),
        *((name, ctypes.c_int32) for name in ("heads", "head_size", "state_size", "groups", "min_tokens")),
        ("step_scale", ctypes.c_float),
    )


class NormShape(ctypes.Structure):
    """``Shape`` of mamba_norm.cu."""

    _fields_ = (
        ("z_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("columns", "group", "gates_first")),
        *((name, ctypes.c_float) for name in ("z_scale", "eps")),
    )


def entry(op: str, spec: MambaSpec) -> str:
    """Return the kernel of ``op`` that has room for the layer's states."""
    return op if spec.state_size <= WIDE_STATES else f"{op}_256"


def scan_blocks(spec: MambaSpec) -> tuple[int, int]:
    """Return the blocks of mamba_scan.cu that share a head, and the warps of each that compute."""
    slices = -(-spec.head_size // 16)
    blocks = -(-slices // _MAX_SCAN_WARPS)
    return blocks, -(-slices // blocks)


def scan_shared_bytes(spec: MambaSpec, stages: int) -> int:
    """Return the shared memory of a block of mamba_scan.cu."""
    states = WIDE_STATES if spec.state_size <= WIDE_STATES else 2 * WIDE_STATES
    rows = 2 * (states + 8) + 16 * scan_blocks(spec)[1] + 8
    stage = 2 * CHUNK_TOKENS * rows + 4 * (5 * CHUNK_TOKENS + 4)
    return _SCORE_BYTES + stages * stage


def scan_stages(spec: MambaSpec, shared_bytes: int) -> int:
    """Return how many chunks a block holds: two, or one where two do not fit ``shared_bytes``."""
    return 2 if scan_shared_bytes(spec, 2) <= shared_bytes else 1


def norm_threads(group: int) -> int:
    """Return the threads of a block of mamba_norm.cu, whose group has so many channels."""
    chunks = -(-group // (8 * 32 * _NORM_CHUNKS)) * 32
    return min(_MAX_NORM_THREADS, max(chunks, min(256, -(-group // 256) * 32)))
