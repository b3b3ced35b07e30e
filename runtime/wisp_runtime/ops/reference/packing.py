"""Reference implementation of the tiled, swizzled layout of a GPU's weight matrices, and its inverse.

``kernels/README.md`` describes it: a matrix ``[out, in]`` is split in blocks of 64 x 64, zeros at the edges;
a row of blocks is one stream over ``in``. In a block row r has 128 bytes, its 16-byte chunk c at position
``c ^ (r % 8)``: the swizzle that the tensor cores read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wisp_plan.weights.layout import BLOCK, packed_shape
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation, permuted_row

_CHUNK = 8  # elements of 2 bytes in 16 bytes
_CHUNKS = BLOCK // _CHUNK


def pack(matrix: Array, permutation: RowPermutation = "plain") -> Array:
    """Lay a matrix out as a GPU holds it.

    Args:
        matrix: ``[out, in]`` of any dtype of 2 bytes, its rows before permutation.
        permutation: row permutation.

    Returns:
        ``[packed_elements(out, in)]``, same dtype.
    """
    outputs, inputs = matrix.shape
    rows, columns = packed_shape(outputs, inputs)
    padded = np.zeros((rows, columns), matrix.dtype)
    padded[permuted_rows(outputs, permutation), :inputs] = matrix
    chunks = padded.reshape(rows // BLOCK, BLOCK, columns // BLOCK, _CHUNKS, _CHUNK)
    chunks = chunks.transpose(0, 2, 1, 3, 4)[:, :, *_positions()]
    return np.ascontiguousarray(chunks).reshape(-1)


def unpack(storage: Array, outputs: int, inputs: int, permutation: RowPermutation = "plain") -> Array:
    """Return the matrix ``[out, in]`` that :func:`pack` laid out as ``storage``."""
    rows, columns = packed_shape(outputs, inputs)
    chunks = storage.reshape(rows // BLOCK, columns // BLOCK, BLOCK, _CHUNKS, _CHUNK)[:, :, *_positions()]
    padded = chunks.transpose(0, 2, 1, 3, 4).reshape(rows, columns)
    return padded[permuted_rows(outputs, permutation), :inputs]


def permuted_rows(outputs: int, permutation: RowPermutation) -> Array:
    """Return the position of each row of a matrix among the packed ones: ``[out]``; a bias is permuted alike.

    ``gate_up_interleaved`` gives a thread of the GEMM a gate and, eight rows on, the value that it gates.
    ``rope_interleaved_<Dh>`` puts 32 channels of a head and the 32 that rotate with them in a row tile of 64.
    """
    return permuted_row(np.arange(outputs), outputs, permutation)


def _positions() -> Any:
    """Return indices ``[64, 8]`` of a block's rows and chunks; a swizzle is its own inverse."""
    rows = np.arange(BLOCK)[:, None]
    return rows, np.arange(_CHUNKS) ^ rows % 8
