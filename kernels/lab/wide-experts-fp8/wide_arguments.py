"""Launch of ``experts_fp8_block.cu``: its argument structure, entries, block and shared memory."""

from __future__ import annotations

import ctypes

from wisp_plan.quantization.packed_format import PACKED_FORMATS, TILE_ROWS

PACKED = PACKED_FORMATS["fp8_block"]
WIDE_TOKENS = 256
"""Tokens of a tile, at most."""

BOX_TOKENS = 64
"""Tokens of a box of the tensor map; a tile is multiplied by as many boxes as it has."""

ROW_TILES = 2
"""64-row tiles of a block's share of a matrix."""

THREADS = 384

_TOKEN_STAGES, _WEIGHT_STAGES = (3, 4), 4  # the former plain, gated
_CODE_BYTES, _SCALE_BYTES = 8192, 128  # of a row tile in a stage of weights
_QUEUE_BYTES, _BARRIER_BYTES = 32, 16  # a tile given out; the two barriers of a stage


class ExpertArguments(ctypes.Structure):
    """``ExpertArgs`` of ``tile_queue.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "out", "tiles", "tile_count", "next")),
        *((name, ctypes.c_longlong) for name in ("matrix_bytes", "block_scales", "row_scales")),
        *((name, ctypes.c_int32) for name in ("rows", "row_blocks", "column_tiles", "out_columns")),
    )


def arguments_of(outputs: int, inputs: int, matrix_bytes: int, *, is_gated: bool) -> ExpertArguments:
    """Return the arguments for experts of ``[outputs, inputs]``, without pointers.

    Args:
        matrix_bytes: distance of two experts' matrices.
    """
    block_scales, row_scales, _ = PACKED.sections(outputs, inputs)
    return ExpertArguments(
        matrix_bytes=matrix_bytes,
        block_scales=block_scales,
        row_scales=row_scales,
        rows=outputs,
        row_blocks=-(-outputs // (TILE_ROWS * ROW_TILES)),
        column_tiles=-(-inputs // PACKED.tile_columns),
        out_columns=outputs // 2 if is_gated else outputs,
    )


def entry(*, is_gated: bool) -> str:
    """Return the kernel's name."""
    return "experts_swiglu_fp8_block_wide" if is_gated else "experts_fp8_block_wide"


def shared_bytes(*, is_gated: bool) -> int:
    """Return the dynamic shared memory of a block: stages, results, barriers and the tile given out."""
    token_stages, columns = _TOKEN_STAGES[is_gated], TILE_ROWS // (2 if is_gated else 1)
    stages = token_stages * WIDE_TOKENS * 128 + _WEIGHT_STAGES * ROW_TILES * (_CODE_BYTES + _SCALE_BYTES)
    results = ROW_TILES * WIDE_TOKENS * columns * 2
    return stages + results + (token_stages + _WEIGHT_STAGES + 1) * _BARRIER_BYTES + _QUEUE_BYTES
