"""Upload of a checkpoint's rows into the weights of a device: destinations, and the uploader protocol.

Reading files and storing rows are separate: a :class:`WeightUploader` lends a buffer, has it filled, and
stores the rows, for several threads at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array

RowPermutation = Literal[
    "plain", "gate_up_interleaved", "rope_interleaved_128", "rope_interleaved_192", "rope_interleaved_256"
]
"""Permutation of a weight's rows on a GPU: :func:`permuted_row` (``kernels/README.md`` says why)."""

Fill = Callable[[Array], Array]
"""``fill(buffer)``: write rows into a buffer ``[bytes]`` uint8 and return the part of it that holds them."""

PAGE_BYTES = 4096
SLACK_BYTES = 2 * PAGE_BYTES
"""Bytes of a buffer beyond its rows, so that a read may begin and end at page boundaries."""

STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""NumPy's dtypes of the stored ones that we can compute with, by safetensors' names."""


@dataclass(frozen=True, slots=True)
class WeightDestination:
    """Rows of a weight, and their dtype in the checkpoint.

    Attributes:
        weight: the device's matrix or vector.
        permutation: the weight's row permutation on this device.
        first: index of the first row; rows of stacked tensors are counted top to bottom, before permutation.
        shape: ``(R, in)`` for rows of a matrix, ``(R,)`` for a part of a vector.
        dtype: dtype in the checkpoint, by safetensors' name.
    """

    weight: Any
    permutation: RowPermutation
    first: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows as they are stored."""
        return math.prod(self.shape) * STORED[self.dtype].itemsize


def interleaved_head_size(permutation: RowPermutation) -> int:
    """Return the head size of a permutation that interleaves the halves of heads for RoPE, else 0."""
    return (
        int(permutation.removeprefix("rope_interleaved_"))
        if permutation.startswith("rope_interleaved_")
        else 0
    )


def qkv_permutation(head_size: int, *, rotates_all: bool, is_normed: bool) -> RowPermutation:
    """Return the row permutation of Q, K and V for which a GEMM can apply RoPE itself.

    All of a head rotates, none is normed. Heads of 64 fit a row tile as they are; other sizes need half a
    head to be a multiple of 32 rows.
    """
    if is_normed or not rotates_all:
        return "plain"
    by_heads: dict[int, RowPermutation] = {
        128: "rope_interleaved_128",
        192: "rope_interleaved_192",
        256: "rope_interleaved_256",
    }
    return by_heads.get(head_size, "plain")


def permuted_row(row: Any, rows: int, permutation: RowPermutation) -> Any:
    """Return the position of row ``row`` (an integer, or an array of them) of ``rows`` stacked rows.

    ``gate_up_interleaved``: eight rows of gate, the first half, and the matching eight rows of up alternate.
    ``rope_interleaved_<Dh>``: in each head of Dh rows, 32 of its first half and the 32 that rotate with them
    alternate; so Dh / 2 is a multiple of 32.
    """
    if permutation == "plain":
        return row
    if permutation == "gate_up_interleaved":
        half, row = divmod(row, rows // 2)
        return row // 8 * 16 + half * 8 + row % 8
    size = interleaved_head_size(permutation)
    assert size % 64 == 0, f"{permutation}: half a head is no multiple of 32 rows"
    half, channel = divmod(row % size, size // 2)
    return row - row % size + channel // 32 * 64 + half * 32 + channel % 32


class WeightUploader(Protocol):
    """Stores rows in weights. :meth:`upload` may be called by many threads at once.

    Attributes:
        threads: number of threads that are worth reading with.
        chunk_bytes: maximum bytes of rows a call.
    """

    threads: int
    chunk_bytes: int

    def upload(self, destination: WeightDestination, fill: Fill) -> None:
        """Lend ``fill`` a buffer (it waits for a free one) and store its rows at ``destination``.

        The buffer begins at a page and has ``SLACK_BYTES`` more than the rows. What ``fill`` raises is
        raised.
        """
        ...

    def finish(self) -> None:
        """Wait until everything is stored, and free the buffers."""
        ...


class HostUploader:
    """An uploader for weights in the host's memory: the thread that reads also stores.

    Args:
        store: function of a destination and its rows in the checkpoint's dtype.
    """

    threads = 4
    chunk_bytes = 1 << 20

    def __init__(self, store: Callable[[WeightDestination, Array], None]) -> None:
        self._store = store

    def upload(self, destination: WeightDestination, fill: Fill) -> None:
        """See :meth:`WeightUploader.upload`."""
        rows = fill(page_aligned(np.empty(destination.size_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8)))
        self._store(destination, rows.view(STORED[destination.dtype]).reshape(destination.shape))

    def finish(self) -> None:
        """Everything is stored already."""


def page_aligned(memory: Array) -> Array:
    """Return ``memory`` ``[bytes]`` from the first page that begins in it."""
    return memory[-memory.ctypes.data % PAGE_BYTES :]
