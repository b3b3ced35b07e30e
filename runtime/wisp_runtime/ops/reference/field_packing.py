"""Reference implementation of E2M1 in fields: codes where bf16 has its bits, four pairs of numbers a word.

A number's field is its sign at bit 15 and its magnitude at bits 8 to 6 of a half of a word; a pair is an even
column, in the lower half, and the next. The words of a lane's 64 columns are ``[group of 32][upper, lower
row]``, the pairs of a word ``[step of 16][left, right]``. A word has all bits of four pairs, of which
:func:`pairs_of` says how they are read; ``kernels/include/quantized/e2m1_fields.cuh`` does the same.
"""

from __future__ import annotations

import numpy as np

from wisp_plan.quantization.packed_format import CODE_BYTES
from wisp_runtime.batch import Array

_FIELDS = np.uint32(0x81C081C0)
_FRAGMENTS = (4, 2, 8)  # slices of a row tile, their halves, and rows
_WORDS = (4, 8, 4, 2, 2)  # quarters of a slice, rows of a half, pairs of columns, groups, halves
_INTO_WORDS = (0, 4, 1, 5, 3, 9, 6, 2, 7, 8, 10)
"""Row and column tile, slice, quarter, row, pair of columns, group, half; step, side, column."""


def pack_fields(fragments: Array) -> Array:
    """Return ``[row tiles, column tiles, 4, 2048]`` bytes.

    Args:
        fragments: codes by row tile, slice, half, row, column tile, quarter, step, side, pair of columns,
            column.
    """
    row_tiles, column_tiles = fragments.shape[0], fragments.shape[4]
    shape = (row_tiles, *_FRAGMENTS, column_tiles, 4, 2, 2, 2, 4, 2)
    codes = fragments.reshape(shape).transpose(_INTO_WORDS).astype(np.uint32)
    fields = (codes & 7) << 6 | codes >> 3 << 15
    pairs = fields[..., 0] | fields[..., 1] << 16
    words = word_of(pairs.reshape(*pairs.shape[:-2], 4))
    octets = np.ascontiguousarray(words, "<u4").view(np.uint8)
    return octets.reshape(row_tiles, column_tiles, 4, CODE_BYTES)


def unpack_fields(octets: Array) -> Array:
    """Return the codes by the axes of :func:`pack_fields`'s argument, of its result."""
    row_tiles, column_tiles = octets.shape[:2]
    words = np.ascontiguousarray(octets).view("<u4").reshape(row_tiles, column_tiles, 4, *_WORDS)
    pairs = pairs_of(words.astype(np.uint32))
    halves = np.stack([pairs & 0xFFFF, pairs >> 16], -1)
    codes = (halves >> 6 & 7 | halves >> 15 << 3).astype(np.uint8)
    codes = codes.reshape(*words.shape, 2, 2, 2).transpose(np.argsort(_INTO_WORDS))
    return codes.reshape(row_tiles, *_FRAGMENTS, column_tiles, 4, 4, 2, 4, 2)


def pairs_of(words: Array) -> Array:
    """Return the four pairs of each word, uint32, along a new last axis."""
    rotated = words >> 6 | words << 26
    return np.stack([words, words << 4, rotated, words << 6 ^ words >> 2], -1) & _FIELDS


def word_of(pairs: Array) -> Array:
    """Return the word of which :func:`pairs_of` makes ``pairs``, ``[..., 4]`` uint32."""
    first, second, third, fourth = np.moveaxis(pairs, -1, 0)
    word = first | second >> 4 | third << 6 | third >> 26
    missing = fourth ^ pairs_of(word)[..., 3]
    chain = missing >> 6 & 0x02020202  # a bit here is one of two bits of a pair, 8 apart
    chain ^= chain >> 8
    chain ^= chain >> 16
    return word | chain | missing >> 6 & 0x00010001 | missing << 2 & 0x04000400
