"""Packed formats: how a GPU holds a quantized ``[out, in]`` matrix, byte by byte.

Three sections follow each other; every GEMM, general or persistent, reads this order
(``kernels/README.md``):

1. tiles of 64 rows and ``tile_columns`` columns, ``[row tile][column tile]``: 4 slices of 16 rows, each with
   its codes (2,048 bytes, in the order of the tensor cores' A fragments), its groups' scales and zero points;
2. block scales, where the format has them: float32 ``[row tile][column tile][slice][upper or lower 8 rows]``;
3. row scales: float32 ``[64 * row tiles]``.

A weight is ``(number - zero) * group scale * block scale * row scale``, without what a format lacks.
The reference is ``wisp_runtime/ops/reference/quantized_packing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TILE_ROWS = 64
SLICE_ROWS = 16
BLOCK_SCALE_ROWS = 8
"""Rows of a tile that share a block scale."""

SECTION_ALIGNMENT = 128
"""Sections, and the next weight, begin at multiples of so many bytes."""

MAX_COLUMNS = 61_440
"""Columns of a quantized matrix, at most: 128 rows of a byte, and their scales, fit an uploader's buffer."""

CODE_BYTES = 2048
"""Bytes of a slice's codes; its group scales and zero points follow."""

_BLOCK_SCALE_BYTES = 32  # of a tile: 4 slices, 2 halves, float32

Numbers = Literal["e4m3", "int8", "int4", "e2m1"]
GroupScales = Literal["f16", "exponent", "e4m3"]

_BITS: dict[Numbers, int] = {"e4m3": 8, "int8": 8, "int4": 4, "e2m1": 4}  # a tile is whole for 8 and 4


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """Format of a quantized matrix in a GPU's memory.

    Attributes:
        name: its name in ``manifest.toml`` and messages.
        numbers: kind of number; ``int8`` and ``int4`` are stored with 128 and 8 added.
        group: columns of a row that share a scale in the tile; 0: there are none.
        group_scales: a group's scale: ``f16``; ``exponent``, a byte b, at most 26, of 2^(b - 13); ``e4m3``,
            bits 14 to 7 of an f16 that is 128 times the E4M3, of 2^-14 times that f16.
        has_zero_points: whether each group has a zero point, a byte, in units of the stored number.
        has_block_scales: whether 8 rows of a tile share a float32.
        is_in_fields: whether codes of E2M1 lie as bits of bf16; exponents b are then of 2^(b - 25), and
            row scales are stored 2^12 times as large.
    """

    name: str
    numbers: Numbers
    group: int = 0
    group_scales: GroupScales | None = None
    has_zero_points: bool = False
    has_block_scales: bool = False
    is_in_fields: bool = False

    @property
    def shown_name(self) -> str:
        """Name of the numbers and scales, whatever the order of codes."""
        return self.name.removesuffix("_fields")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return _BITS[self.numbers]

    @property
    def tile_columns(self) -> int:
        """Columns of a tile: 128 of 8 bits, 256 of 4."""
        return 8 * CODE_BYTES // SLICE_ROWS // self.bits

    @property
    def groups(self) -> int:
        """Groups of a row of a tile."""
        return self.tile_columns // self.group if self.group else 0

    @property
    def group_scale_bytes(self) -> int:
        """Bytes of the group scales of a slice, zero points not counted."""
        return SLICE_ROWS * self.groups * (2 if self.group_scales == "f16" else 1)

    @property
    def zero_points_at(self) -> int:
        """Offset of the zero points in a slice."""
        return CODE_BYTES + self.group_scale_bytes

    @property
    def zero_point_bytes(self) -> int:
        """Bytes of the zero points of a slice."""
        return SLICE_ROWS * self.groups * self.has_zero_points

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice: codes, group scales, zero points."""
        return self.zero_points_at + self.zero_point_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile without its block scales."""
        return TILE_ROWS // SLICE_ROWS * self.slice_bytes

    def tiles(self, out: int, into: int) -> tuple[int, int]:
        """Return the row tiles and column tiles of an ``[out, into]`` matrix."""
        return -(-out // TILE_ROWS), -(-into // self.tile_columns)

    def sections(self, out: int, into: int) -> tuple[int, int, int]:
        """Return the bytes at which block scales and row scales begin, and the bytes of the whole matrix."""
        row_tiles, column_tiles = self.tiles(out, into)
        tiles = row_tiles * column_tiles
        block_scales = _aligned(tiles * self.tile_bytes)
        row_scales = block_scales + _aligned(tiles * _BLOCK_SCALE_BYTES * self.has_block_scales)
        return block_scales, row_scales, row_scales + _aligned(row_tiles * TILE_ROWS * 4)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // SECTION_ALIGNMENT) * SECTION_ALIGNMENT


_PACKED = (
    PackedFormat("fp8", "e4m3"),
    PackedFormat("fp8_block", "e4m3", has_block_scales=True),
    PackedFormat("int8", "int8"),
    PackedFormat("int4", "int4", 128, "f16"),
    PackedFormat("int4_zero", "int4", 128, "f16", has_zero_points=True),
    PackedFormat("int4_g64", "int4", 64, "f16"),
    PackedFormat("int4_g64_zero", "int4", 64, "f16", has_zero_points=True),
    PackedFormat("int4_g32", "int4", 32, "f16"),
    PackedFormat("int4_g32_zero", "int4", 32, "f16", has_zero_points=True),
    PackedFormat("mxfp4", "e2m1", 32, "exponent"),
    PackedFormat("nvfp4", "e2m1", 16, "e4m3"),
)
PACKED_FORMATS = {packed.name: packed for packed in _PACKED}
"""All packed formats by name; a device lists those that it has kernels for."""

_MXFP4_FIELDS = PackedFormat("mxfp4_fields", "e2m1", 32, "exponent", is_in_fields=True)
EXPERT_FORMATS = {packed.name: packed for packed in (*_PACKED, _MXFP4_FIELDS) if packed.name != "mxfp4"}
"""Packed formats that GEMMs of experts read: MXFP4 in fields, which take fewer instructions."""

W8A8 = "w8a8"
"""Name, beside those of formats, of GEMMs whose activations are E4M3 where weights are."""
