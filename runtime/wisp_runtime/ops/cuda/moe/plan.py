"""Tilings of a mixture's kernels. Pure: no arrays, no GPU."""

from __future__ import annotations

from typing import NamedTuple

from wisp_plan.memory.buffers.gemm import BLOCK_M
from wisp_plan.memory.buffers.moe import FEW_TOKENS, RANGE_COLUMNS
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.portable_plan import BLOCK_N, quantized_name, quantized_step

MOE_KERNELS = (
    *("router_logits", "choose_experts", "sort_pairs", "route_tokens", "gather_positions"),
    *("experts", "combine_experts", "combine_rmsnorm"),
)
"""Ops that a model with mixtures of experts needs."""

ROUTER_ROWS = 64
"""Rows of a tile of ``router_tile.cuh``."""

MANY_TOKENS = 64
"""Tokens of its tiles of ``router_logits.cu``; those of ``route_tokens.cu`` have FEW_TOKENS."""

WIDE_TOKENS = (128, 192)
"""Tokens of the tiles of Hopper's ``experts.cu``."""

PACKED_WIDE_TOKENS = 256
"""Tokens of the tiles of Hopper's ``experts_fp8_block.cu``, which multiplies as many as there are, by 64."""

WIDE_ROW_TILES = 3
"""64-row tiles of each tile of ``experts.cu``."""

WIDE_BARRIER_BYTES = 256
"""Shared memory of the barriers of ``experts.cu``."""

_MIN_WIDE_TOKENS = 64  # of a mean expert: fewer, and memory is the limit of every kernel
_MIN_WIDEST_TOKENS = (
    256  # from which on the tiles' last tokens, which may be missing, matter less than their width
)
_MIN_PACKED_WIDE_TOKENS = 64
"""Tokens of a mean expert from which ``experts_fp8_block.cu`` is used; fewer were not measured. 2,048 tokens
of Qwen3.6-35B-A3B have 64 an expert and take 40.2 ms on an H200 instead of 59.1; 512 (16) and 512 of
Qwen3-30B-A3B (32) keep the portable kernel."""

_SPARE = 1.5  # tokens of a tile over those of a mean expert: most experts then have one tile
_ROW_BYTES = 128  # of a token in a stage, along K: 64 columns
_SORT_WARPS, _ROUTE_WARPS = constants()["sort_threads"] // 32, constants()["route_threads"] // 32


def route_grid(tokens: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the grid of ``route_tokens.cu``: its last number is that of the stored sums of a logit."""
    return -(-tokens // FEW_TOKENS), -(-rows // ROUTER_ROWS), -(-columns // RANGE_COLUMNS)


def router_shared_bytes(width: int, *, is_float: bool) -> int:
    """Return the shared memory of four stages of a router's tile of ``width`` tokens."""
    return 4 * ((3 if is_float else 1) * ROUTER_ROWS + width) * _ROW_BYTES


def few_shared_bytes(rows: int, spec: RouterSpec, pairs: int, *, is_float: bool) -> int:
    """Return the shared memory of a block of ``route_tokens.cu``: stages, then what it chooses and sorts in.

    Args:
        rows: distance of two tokens' logits.
    """
    scores = FEW_TOKENS * (rows + (spec.experts if spec.groups > 1 else 0))
    words = scores + 3 * spec.experts + _ROUTE_WARPS + pairs
    return max(router_shared_bytes(FEW_TOKENS, is_float=is_float), 4 * words)


def choice_entry(experts: int) -> str:
    """Return the end of the name of a kernel that chooses: it is for 32 times as many experts at most."""
    return str(next(own for own in (4, 8, 16) if own * 32 >= experts))


class Tile(NamedTuple):
    """Tile of an expert's GEMM.

    Attributes:
        width: tokens.
        is_wide: whether it is of Hopper's ``experts.cu`` or ``experts_fp8_block.cu``, whose tokens are put in
            order first.
    """

    width: int
    is_wide: bool = False


def mma_tile(pairs: int, experts: int) -> Tile:
    """Return the tile of the portable kernels: the narrowest that holds more than a mean expert's tokens."""
    return Tile(next((width for width in BLOCK_N if width * experts >= _SPARE * pairs), BLOCK_N[-1]))


def wide_tile(pairs: int, experts: int, *, is_packed: bool = False) -> Tile | None:
    """Return the tile of Hopper's kernels, or None where the portable ones are as fast.

    Args:
        is_packed: whether weights are in block FP8, not bf16.
    """
    if pairs < (_MIN_PACKED_WIDE_TOKENS if is_packed else _MIN_WIDE_TOKENS) * experts:
        return None
    if is_packed:
        return Tile(PACKED_WIDE_TOKENS, is_wide=True)
    return Tile(192 if pairs >= _MIN_WIDEST_TOKENS * experts else 128, is_wide=True)


def wide_entry(width: int, is_gated: bool) -> str:
    """Return Hopper's kernel of a tile's tokens, in bf16: entries of ``experts.cu`` are called tall."""
    return f"experts_{'swiglu_' if is_gated else ''}tall_n{width}"


def packed_wide_entry(*, is_gated: bool) -> str:
    """Return Hopper's kernel of block FP8, of ``experts_fp8_block.cu``."""
    return f"experts_{'swiglu_' if is_gated else ''}fp8_block_wide"


def experts_entry(packed: PackedFormat | None, width: int) -> str:
    """Return the kernel of a format, None for bf16, and of a tile's tokens."""
    return f"experts_mma_n{width}" if packed is None else f"experts_mma_{quantized_name(packed)}_n{width}"


def experts_shared_bytes(packed: PackedFormat | None, width: int) -> int:
    """Return the shared memory of a block, as ``linear_mma.cuh`` and ``quantized_mma.cuh`` lay it out."""
    if packed is None:
        return (4 if width <= 64 else 3) * (BLOCK_M + width) * _ROW_BYTES
    return 4 * quantized_step(packed, width) * width * _ROW_BYTES


def experts_grid(outputs: int, tiles: int) -> tuple[int, int]:
    """Return the grid of an expert GEMM: its row tiles, and all tiles that there may be."""
    return -(-outputs // BLOCK_M), tiles


def sort_shared_bytes(experts: int) -> int:
    """Return the shared memory of a block of ``sort_pairs.cu``: counts, and sums of warps."""
    return 4 * (experts + 2 * _SORT_WARPS)
