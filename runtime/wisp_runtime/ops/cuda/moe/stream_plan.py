"""Tilings of Hopper's ``stream_experts.cu``, for experts of few tokens. Pure: no arrays, no GPU."""

from __future__ import annotations

from typing import NamedTuple

from wisp_plan.quantization.packed_format import TILE_ROWS, PackedFormat
from wisp_runtime.ops.cuda.gemm.portable_plan import quantized_name

_MAX_TOKENS, _MAX_FIELD_TOKENS = 8, 64

STREAM_TOKENS = 8
"""Tokens of its tiles."""

STREAM_THREADS = 192
"""Threads of a block: four warps that multiply, one that brings weights, one that brings tokens."""

STREAM_ROWS = 64
"""Rows of its tiles; columns are a multiple of as many."""

_MIN_BLOCKS, _MAX_BLOCKS = 2, 4  # of a multiprocessor
_MAX_STAGES = 16
_BARRIER_BYTES = 256
_RESERVED_BYTES = 1024  # of shared memory, that each block takes beside its own
_PADDING_BYTES = 16  # after a token in a stage
_BLOCK_SCALE_BYTES = 32  # of a tile


def max_stream_tokens(packed: PackedFormat | None) -> int:
    """Return the tokens of a step up to which the kernel is faster than the portable ones."""
    return _MAX_FIELD_TOKENS if packed is not None and packed.is_in_fields else _MAX_TOKENS


class StreamTiling(NamedTuple):
    """Blocks of a multiprocessor, and the pipeline of each.

    Attributes:
        blocks: blocks that share a multiprocessor, and have its shared memory: all are resident at once.
        stages: tiles of weights in flight, a block.
        shared_bytes: shared memory of a block.
    """

    blocks: int
    stages: int
    shared_bytes: int


def stream_entry(packed: PackedFormat | None) -> str:
    """Return the kernel of a format, None for bf16."""
    return "stream_experts" if packed is None else f"stream_experts_{quantized_name(packed)}"


def stream_tiling(packed: PackedFormat | None, items: int, sm_count: int, shared_bytes: int) -> StreamTiling:
    """Return as few blocks as take the first GEMM's items at once, and the stages of each.

    Fewer blocks have longer pipelines. Of 2, 3 and 4 blocks an H200 (132 multiprocessors) was fastest with 3
    for gpt-oss at one token (360 items), with 2 for Qwen's FP8 (128 and 192 items), with 4 at eight tokens.

    Args:
        packed: format of the weights, None for bf16.
        items: tiles of 64 rows and eight tokens of the first GEMM.
        shared_bytes: shared memory that one block may have.
    """
    blocks = min(max(-(-items // sm_count), _MIN_BLOCKS), _MAX_BLOCKS)
    stage_bytes = _stage_bytes(packed)
    own_bytes = (shared_bytes + _RESERVED_BYTES) // blocks - _RESERVED_BYTES - _BARRIER_BYTES
    stages = min(_MAX_STAGES, own_bytes // stage_bytes)
    return StreamTiling(blocks, stages, _BARRIER_BYTES + stages * stage_bytes)


def _stage_bytes(packed: PackedFormat | None) -> int:
    """Return the bytes of a tile of weights, its block scales, and its tokens."""
    if packed is None:
        return TILE_ROWS * STREAM_ROWS * 2 + STREAM_TOKENS * (STREAM_ROWS * 2 + _PADDING_BYTES)
    scales = _BLOCK_SCALE_BYTES if packed.has_block_scales else 0
    return packed.tile_bytes + scales + STREAM_TOKENS * (packed.tile_columns * 2 + _PADDING_BYTES)
