"""Upload of a checkpoint's rows into the weights of a device: destinations, and the uploader protocol.

Reading files and storing rows are separate: a :class:`WeightUploader` lends a buffer, has it filled, and
stores the rows, for several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_plan.memory.loading import HOST_CHUNK_BYTES, HOST_THREADS
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of a quantized weight, as a host sends them to a device.

    Attributes:
        codes: ``[R, in]`` uint8, or ``[R, in / 2]`` of codes of 4 bits, the even column low: codes as
            :class:`~wisp_runtime.ops.reference.quantized_packing.QuantizedMatrix` has them.
        row_scales: ``[R]`` float32.
        group_scales, zero_points, block_scales: rows of that class's arrays.
    """

    codes: Array
    row_scales: Array
    group_scales: Array | None = None
    zero_points: Array | None = None
    block_scales: Array | None = None

    @property
    def arrays(self) -> tuple[Array | None, ...]:
        """All arrays, the codes first."""
        return self.codes, self.row_scales, self.group_scales, self.zero_points, self.block_scales

    def __getitem__(self, rows: slice) -> QuantizedRows:
        return QuantizedRows(*(None if array is None else array[rows] for array in self.arrays))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(0 if array is None else array.nbytes for array in self.arrays)


@dataclass(frozen=True, slots=True)
class CompactRows:
    """Rows of a quantized weight as the CPU holds them.

    Attributes:
        codes: ``[R, in]`` int8, or uint16: the bits of bf16.
        scales: ``[R, in / group]`` float32.
        minima: array like ``scales``; None: there are none.
    """

    codes: Array
    scales: Array
    minima: Array | None


Fill = Callable[[Array], Array | QuantizedRows | CompactRows]
"""``fill(buffer)``: write rows into a buffer ``[bytes]`` uint8 and return the part of it that holds them."""

QUANTIZED = "quantized"
"""Dtype of a destination of :class:`QuantizedRows` or :class:`CompactRows`."""

PAGE_BYTES = 4096
SLACK_BYTES = 2 * PAGE_BYTES
"""Bytes of a buffer beyond its rows, so that a read may begin and end at page boundaries."""

STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    **{name: np.dtype((np.void, block.size_bytes)) for name, block in BLOCK_TYPES.items()},
}
"""NumPy's dtypes of stored tensors, by safetensors' names."""


@dataclass(frozen=True, slots=True)
class WeightDestination:
    """Rows of a weight, and their dtype in the checkpoint.

    Attributes:
        weight: the device's matrix, or the flat array of another weight.
        permutation: the weight's row permutation on this device.
        first: index of the first row, or element; rows are counted top to bottom, before permutation.
        shape: ``(R, in)`` for rows of a matrix, ``(R,)`` for elements of an array.
        dtype: dtype in the checkpoint, by safetensors' name; :data:`QUANTIZED` for :class:`QuantizedRows`.
    """

    weight: Any
    permutation: RowPermutation
    first: int
    shape: tuple[int, ...]
    dtype: str


class WeightUploader(Protocol):
    """Stores rows in weights. :meth:`upload` may be called by many threads at once.

    Attributes:
        threads: number of threads that are worth reading with.
        chunk_bytes: maximum bytes of a read.
        dequantized: dtype of rows that were dequantized on the host, by safetensors' name.
    """

    threads: int
    chunk_bytes: int
    dequantized: str

    def upload(self, destination: WeightDestination, read_bytes: int, fill: Fill) -> None:
        """Lend ``fill`` a buffer (it waits for a free one) and store its rows at ``destination``.

        The buffer begins at a page and has ``SLACK_BYTES`` more than ``read_bytes``. What ``fill`` raises is
        raised.
        """
        ...

    def finish(self) -> bool:
        """Wait until everything is stored, and free the buffers.

        Returns:
            Whether the numbers of rows that came quantized, or that the device rounded, were finite; those of
            others are not looked at.
        """
        ...


class HostUploader:
    """An uploader for weights in the host's memory: the thread that reads also stores.

    Args:
        store: function of a destination and its rows in the checkpoint's dtype.
    """

    threads = HOST_THREADS
    chunk_bytes = HOST_CHUNK_BYTES
    dequantized = "F32"

    def __init__(self, store: Callable[[WeightDestination, Array | CompactRows], None]) -> None:
        self._store = store

    def upload(self, destination: WeightDestination, read_bytes: int, fill: Fill) -> None:
        """See :meth:`WeightUploader.upload`."""
        rows = fill(page_aligned(np.empty(read_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8)))
        assert not isinstance(rows, QuantizedRows), "those are a GPU's"
        if isinstance(rows, CompactRows):
            self._store(destination, rows)
            return
        self._store(destination, rows.view(STORED[destination.dtype]).reshape(destination.shape))

    def finish(self) -> bool:
        """Everything is stored already, and no rows come quantized or are rounded."""
        return True


def page_aligned(memory: Array) -> Array:
    """Return ``memory`` ``[bytes]`` from the first page that begins in it."""
    return memory[-memory.ctypes.data % PAGE_BYTES :]
