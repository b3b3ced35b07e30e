"""Plan of the reads that fill a model's unquantized weights: contiguous rows, in the order of the files.

Pure: no file is opened here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from operator import add

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.spec.weight import WeightSource, WeightSpec, flat_index
from wisp_runtime.batch import Array
from wisp_runtime.weights.row_pairs import in_halves

_ROW_STEP = 64  # packed matrices have blocks of 64 rows, the CPU's have tiles of 32


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Rows of a tensor that are read at once, and their position in a weight.

    A tensor counts as rows of its last axis; one of a single axis has as many rows as elements.

    Attributes:
        tensor: the tensor.
        first: its first row that is read.
        rows: number of rows that are kept.
        row_bytes: bytes of a row.
        weight, at: name of the weight, and index in it of the first element.
        shape: shape of what is kept.
        step: distance between rows that are kept.
        columns: bytes of each element, and indices of those that are kept of a row; None: all.
    """

    tensor: TensorInfo
    first: int
    rows: int
    row_bytes: int
    weight: str
    at: tuple[int, ...]
    shape: tuple[int, ...]
    step: int = 1
    columns: tuple[int, range] | None = None

    @property
    def start(self) -> int:
        """Offset of its bytes in the file."""
        return self.tensor.start + self.first * self.row_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes that are read."""
        return ((self.rows - 1) * self.step + 1) * self.row_bytes

    def select(self, raw: Array) -> Array:
        """Return the bytes to store of those read, ``raw`` ``[size_bytes]`` uint8; may overwrite them."""
        if self.step == 1 and self.columns is None and not self.tensor.paired_rows:
            return raw
        rows = in_halves(raw.reshape(-1, self.row_bytes)[:: self.step], self.tensor.paired_rows)
        if self.columns is not None:
            element_bytes, kept = self.columns
            rows = rows.reshape(self.rows, -1, element_bytes)[:, kept.start : kept.stop : kept.step]
        selected = rows.reshape(-1).copy()
        raw[: len(selected)] = selected
        return raw[: len(selected)]


def plan(
    weights: Iterable[WeightSpec], tensors: Mapping[str, TensorInfo], chunk_bytes: int
) -> list[ReadChunk]:
    """List the reads that fill the unquantized of ``weights``, in the order of the bytes in the files.

    A chunk has at most ``chunk_bytes`` (or one row), and starts at a multiple of 64 rows of its source where
    64 rows are not too much for a chunk.
    """
    chunks = [
        chunk
        for weight in weights
        for source in weight.sources
        if source.stored is None
        for chunk in _chunks(weight, source, tensors[source.tensor], chunk_bytes)
    ]
    return sorted(chunks, key=lambda chunk: (chunk.tensor.file, chunk.start))


def _chunks(
    weight: WeightSpec, source: WeightSource, tensor: TensorInfo, chunk_bytes: int
) -> Iterator[ReadChunk]:
    view = source.view or source.shape
    row_axes, widths, columns = view[:-1] or view, view[1:][-1:], None
    row_bytes = tensor.size_bytes // max(1, math.prod(row_axes))
    *outer, rows = source.slices[: len(row_axes)]
    kept = tuple(map(len, source.slices[len(row_axes) :]))
    if widths and source.slices[-1] != range(*widths):
        columns = row_bytes // widths[0], source.slices[-1]
    fitting = max(1, chunk_bytes // max(1, row_bytes * rows.step))
    count = fitting // _ROW_STEP * _ROW_STEP or fitting
    if head := tensor.paired_rows:
        count = max(1, fitting // head) * head
    for position in product(*(range(len(axis)) for axis in outer)):
        index = tuple(axis[number] for axis, number in zip(outer, position, strict=True))
        before = flat_index(row_axes, (*index, 0))
        for start in range(0, len(rows), count):
            part = rows[start : start + count]
            moved = (*position, start, *(0 for _ in kept))
            at = *source.at[: -len(moved)], *map(add, source.at[-len(moved) :], moved)
            yield ReadChunk(
                tensor,
                before + part.start,
                len(part),
                row_bytes,
                weight.name,
                at,
                (len(part), *kept),
                rows.step,
                columns,
            )
