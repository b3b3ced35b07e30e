"""How a checkpoint's bytes get from its files into the weights of a device.

Who reads the files does not know where the bytes land, and who stores them does not know files: an
:class:`Intake` lends a buffer, has it filled, and puts the rows in place, for several threads at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array

RowOrder = Literal["plain", "gate_up", "heads_128", "heads_192", "heads_256"]
"""In which order a GPU holds rows: :func:`packed_row` (``kernels/README.md`` says why)."""

Fill = Callable[[Array], Array]
"""Given a buffer ``[bytes]`` uint8, write rows into it and return the part of it that they are."""

PAGE_BYTES = 4096
SLACK_BYTES = 2 * PAGE_BYTES
"""What a buffer has beyond its rows, so that a read may begin and end at the bounds of pages."""

STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""NumPy's dtypes of those that safetensors names and we can compute with."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rows of a weight, and how they are stored in the checkpoint.

    Attributes:
        weight: the device's matrix or vector.
        order: of the weight's rows on a GPU.
        first: the first of the rows; those of stacked tensors are counted top to bottom, whatever the order.
        shape: ``(R, in)`` for rows of a matrix, ``(R,)`` for a part of a vector.
        dtype: as safetensors names it.
    """

    weight: Any
    order: RowOrder
    first: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows as they are stored."""
        return math.prod(self.shape) * STORED[self.dtype].itemsize


def head_rows(order: RowOrder) -> int:
    """Return the rows of a head in an order by heads, 0 of another order."""
    return int(order.removeprefix("heads_")) if order.startswith("heads_") else 0


def qkv_order(head_size: int, *, rotates_all: bool, is_normed: bool) -> RowOrder:
    """Return the order of Q, K and V in which a product can rotate its rows itself.

    All of a head rotates, none is normed. Heads of 64 fit a row tile as they are; other sizes need half a
    head to be a multiple of 32 rows.
    """
    if is_normed or not rotates_all:
        return "plain"
    by_heads: dict[int, RowOrder] = {128: "heads_128", 192: "heads_192", 256: "heads_256"}
    return by_heads.get(head_size, "plain")


def packed_row(row: Any, rows: int, order: RowOrder) -> Any:
    """Return where row ``row`` (an integer, or an array of them) of ``rows`` stacked rows lies.

    ``gate_up``: eight rows of gate, the first half, and the eight rows of up beside them alternate.
    ``heads_<Dh>``: in each head of Dh rows, 32 of its first half and the 32 that rotate with them alternate;
    so Dh / 2 is a multiple of 32.
    """
    if order == "plain":
        return row
    if order == "gate_up":
        half, row = divmod(row, rows // 2)
        return row // 8 * 16 + half * 8 + row % 8
    size = head_rows(order)
    assert size % 64 == 0, f"{order}: half a head is no multiple of 32 rows"
    half, channel = divmod(row % size, size // 2)
    return row - row % size + channel // 32 * 64 + half * 32 + channel % 32


class Intake(Protocol):
    """Brings rows into weights. :meth:`put` may be called by many threads at once.

    Attributes:
        threads: how many threads are worth reading with.
        piece_bytes: how many bytes of rows :meth:`put` takes at most.
    """

    threads: int
    piece_bytes: int

    def put(self, place: Place, fill: Fill) -> None:
        """Lend ``fill`` a buffer (it waits for a free one) and bring the rows to their place.

        The buffer begins at a page and has ``SLACK_BYTES`` more than the rows. What ``fill`` raises is
        raised.
        """
        ...

    def finish(self) -> None:
        """Wait until everything is in its place, and free the buffers."""
        ...


class HostIntake:
    """An intake for weights in the host's memory: the thread that reads also stores.

    Args:
        store: called with a place and its rows, as they are stored.
    """

    threads = 4
    piece_bytes = 1 << 20

    def __init__(self, store: Callable[[Place, Array], None]) -> None:
        self._store = store

    def put(self, place: Place, fill: Fill) -> None:
        """See :meth:`Intake.put`."""
        rows = fill(page_aligned(np.empty(place.size_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8)))
        self._store(place, rows.view(STORED[place.dtype]).reshape(place.shape))

    def finish(self) -> None:
        """Everything is in its place already."""


def page_aligned(memory: Array) -> Array:
    """Return ``memory`` ``[bytes]`` from the first page that begins in it."""
    return memory[-memory.ctypes.data % PAGE_BYTES :]
