"""Plan of the reads that fill a model's quantized weights: rows of all the tensors that store them.

Pure: no file is opened here. A chunk has everything that its rows need, so chunks wait for no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.quantization.packed_format import SLICE_ROWS
from wisp_plan.quantization.stored_format import VALUES, StoredFormat
from wisp_plan.spec.weight import WeightSource, WeightSpec, flat_index
from wisp_plan.weights.stored import PartSource, part_sources
from wisp_runtime.batch import Array
from wisp_runtime.weights.row_pairs import in_halves

_PAGES_BYTES = 64 << 10  # between the parts in a buffer
ROW_STEP = 128  # a multiple of the rows of a block, of a packed word's, and of 64


@dataclass(frozen=True, slots=True)
class PartRead:
    """Elements of a stored part that are read at once.

    Attributes:
        source: the part.
        tensor: its tensor.
        start, size_bytes: range of bytes in the file.
        shape: ``[rows, columns]`` of what is read, in units of the part; transposed where the part is.
        rows, columns: indices of ``shape`` that are kept, after the transposition.
    """

    source: PartSource
    tensor: TensorInfo
    start: int
    size_bytes: int
    shape: tuple[int, int]
    rows: range
    columns: range

    def select(self, elements: Array) -> Array:
        """Return the kept ``[rows, columns]`` of the read elements, flat."""
        matrix = elements.reshape(self.shape)
        matrix = matrix.T if self.source.part.is_transposed else matrix
        rows, columns = (slice(kept.start, kept.stop, kept.step) for kept in (self.rows, self.columns))
        return in_halves(matrix[rows, columns], self.tensor.paired_rows)


@dataclass(frozen=True, slots=True)
class QuantizedChunk:
    """Rows of a quantized weight that are read at once.

    Attributes:
        weight, at: name of the weight, and index in it of the first element.
        shape: ``(R, in)``.
        stored: the weight's format in the checkpoint.
        reads: a read of each part, the values first.
    """

    weight: str
    at: tuple[int, ...]
    shape: tuple[int, int]
    stored: StoredFormat
    reads: tuple[PartRead, ...]

    @property
    def tensor(self) -> TensorInfo:
        """The tensor of the values."""
        return self.reads[0].tensor

    @property
    def start(self) -> int:
        """Offset of the values in their file."""
        return self.reads[0].start

    @property
    def size_bytes(self) -> int:
        """Bytes that are read."""
        return sum(read.size_bytes for read in self.reads)


def plan_quantized(
    weights: Iterable[WeightSpec], tensors: Mapping[str, TensorInfo], chunk_bytes: int
) -> list[QuantizedChunk]:
    """List the reads that fill the quantized of ``weights``, in the order of the bytes in the files.

    A chunk has some ``chunk_bytes`` of rows as held, in multiples of 128 rows; tensors that are stored
    transposed are read whole.
    """
    chunks = [
        chunk
        for weight in weights
        for source in weight.sources
        if source.stored is not None
        for chunk in _chunks(weight, source, tensors, chunk_bytes)
    ]
    return sorted(chunks, key=lambda chunk: (chunk.tensor.file, chunk.start))


def _chunks(
    weight: WeightSpec, source: WeightSource, tensors: Mapping[str, TensorInfo], chunk_bytes: int
) -> Iterator[QuantizedChunk]:
    assert source.stored is not None
    *outer, rows, columns = source.slices
    parts = part_sources(weight, source)
    is_transposed = any(part.part.is_transposed and part.part.name == VALUES for part in parts)
    row_step = math.lcm(ROW_STEP, tensors[parts[0].tensor].paired_rows or 1, source.stored.scheme.rows or 1)
    fitting = max(1, _fitting_rows(weight, len(columns), chunk_bytes) // row_step) * row_step
    step = len(rows) if is_transposed else fitting
    for position in product(*(range(len(axis)) for axis in outer)):
        leading = tuple(axis[number] for axis, number in zip(outer, position, strict=True))
        for start in range(0, len(rows), step):
            kept = rows[start : start + step]
            moved = (*position, start, 0)
            at = (
                *source.at[: -len(moved)],
                *(a + b for a, b in zip(source.at[-len(moved) :], moved, strict=True)),
            )
            reads = tuple(_read(part, leading, kept, tensors[part.tensor]) for part in parts)
            yield QuantizedChunk(weight.name, at, (len(kept), len(columns)), source.stored, reads)


def _fitting_rows(weight: WeightSpec, columns: int, chunk_bytes: int) -> int:
    """Return how many rows a buffer holds: dequantized, or with scales as stored and as held."""
    packed = weight.held
    if packed is None:
        return chunk_bytes // (2 * columns)
    codes = columns * packed.bits // 8
    tile_columns = SLICE_ROWS * packed.tile_columns
    scales = (
        columns * packed.slice_bytes // tile_columns - codes + columns * packed.has_block_scales // 32 + 8
    )
    return max(0, chunk_bytes - _PAGES_BYTES) // (codes + 2 * scales)


def _read(part: PartSource, leading: tuple[int, ...], rows: range, tensor: TensorInfo) -> PartRead:
    """Return the read of a part for ``rows`` of one matrix of its tensor."""
    *outer, height, width = part.view
    block = part.part.rows
    kept = (
        rows if block == 1 else range(1) if block == 0 else range(rows.start // block, -(-rows.stop // block))
    )
    element_bytes = tensor.size_bytes // tensor.elements
    matrix_start = flat_index(tuple(outer), leading) * height * width if outer else 0
    if part.part.is_transposed:
        shape, first, count = (width, height), matrix_start, height * width
    else:
        span = kept.stop - kept.start if kept.step == 1 else kept[-1] + 1 - kept.start
        shape, first, count = (span, width), matrix_start + kept.start * width, span * width
        kept = range(0, span, kept.step)
    return PartRead(
        part,
        tensor,
        tensor.start + first * element_bytes,
        count * element_bytes,
        shape,
        kept,
        part.slices[-1],
    )
