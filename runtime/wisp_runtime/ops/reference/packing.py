"""The packed order of a weight matrix on a GPU, and the way back: what ``kernels/README.md`` describes.

A matrix ``[out, in]`` is cut in blocks of 64 x 64, zeros at the edges; a row of blocks is one stream over
``in``. In a block row r has 128 bytes, its 16-byte chunk c at place ``c ^ (r % 8)``: the swizzle that the
tensor cores read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wisp_plan.weights.layout import BLOCK, packed_shape
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.upload import RowOrder, packed_row

_CHUNK = 8  # elements of 2 bytes in 16 bytes
_CHUNKS = BLOCK // _CHUNK


def pack(matrix: Array, order: RowOrder = "plain") -> Array:
    """Lay a matrix out as a GPU holds it.

    Args:
        matrix: ``[out, in]`` of any dtype of 2 bytes; of ``gate_up`` all of gate, then all of up.
        order: of the rows.

    Returns:
        ``[packed_elements(out, in)]``, same dtype.
    """
    outputs, inputs = matrix.shape
    rows, columns = packed_shape(outputs, inputs)
    padded = np.zeros((rows, columns), matrix.dtype)
    padded[packed_rows(outputs, order), :inputs] = matrix
    chunks = padded.reshape(rows // BLOCK, BLOCK, columns // BLOCK, _CHUNKS, _CHUNK)
    chunks = chunks.transpose(0, 2, 1, 3, 4)[:, :, *_places()]
    return np.ascontiguousarray(chunks).reshape(-1)


def unpack(storage: Array, outputs: int, inputs: int, order: RowOrder = "plain") -> Array:
    """Return the matrix ``[out, in]`` that :func:`pack` laid out as ``storage``."""
    rows, columns = packed_shape(outputs, inputs)
    chunks = storage.reshape(rows // BLOCK, columns // BLOCK, BLOCK, _CHUNKS, _CHUNK)[:, :, *_places()]
    padded = chunks.transpose(0, 2, 1, 3, 4).reshape(rows, columns)
    return padded[packed_rows(outputs, order), :inputs]


def packed_rows(outputs: int, order: RowOrder) -> Array:
    """Return where each row of a matrix lies among the packed ones: ``[out]``. A bias lies in the same order.

    ``gate_up`` lets a thread of the product's kernel have a gate and, eight rows on, what it gates. By heads,
    a row tile of 64 has 32 channels of a head and the 32 that turn with them.
    """
    return packed_row(np.arange(outputs), outputs, order)


def _places() -> Any:
    """Return indices ``[64, 8]`` of a block's rows and chunks; a swizzle is its own inverse."""
    rows = np.arange(BLOCK)[:, None]
    return rows, np.arange(_CHUNKS) ^ rows % 8
