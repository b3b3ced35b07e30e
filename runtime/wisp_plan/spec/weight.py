"""One weight of a model: its shape, the checkpoint's tensors that fill it, its role and how ranks share it.

Everything about weights derives from these: tensors that a checkpoint must have, bytes in the ledger, layout
of the arena, destinations of the loader, pointers of the persistent kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.quantization.stored_format import StoredFormat

Shape = tuple[int, ...]

Role = Literal["embedding", "head", "projection", "norm", "bias", "parameter", "scale"]
"""Purpose of a weight; only a ``projection`` and the ``head`` are ever quantized."""

COMPUTABLE_DTYPES = ("BF16", "F16", "F32")
"""Dtypes of unquantized tensors, by safetensors' names."""

_MATRICES = ("embedding", "head", "projection")


@dataclass(frozen=True, slots=True)
class GateUpRows:
    """Rows of gate above equally many of up; a device may interleave them to fuse the activation."""


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Rows of query, key and value heads; a device may interleave them so that the GEMM applies RoPE.

    Attributes:
        head_size: Dh; RoPE applies to all channels, and no norm precedes it.
    """

    head_size: int


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Part of a checkpoint's tensor, and its position in a weight.

    Attributes:
        tensor: name in the checkpoint.
        shape: whole shape of the tensor.
        slices: indices taken, a range an axis of ``view``.
        at: index in the weight of the part's first element, one an axis of the weight. The part covers the
            weight's last axis whole.
        view: shape that the tensor is seen in, row-major: ``[C, 1, K]`` as ``[C, K]``; None: as it is.
        dtypes: dtypes that the tensor may have, by safetensors' names.
        is_transposed: whether an unquantized tensor's last two axes are ``[in, out]``; ``slices`` are of
            ``[…, out, in]`` all the same.
        stored: format in which a checkpoint stores it otherwise than as plain rows; None: it does not.
    """

    tensor: str
    shape: Shape
    slices: tuple[range, ...]
    at: Shape
    view: Shape | None = None
    dtypes: tuple[str, ...] = COMPUTABLE_DTYPES
    is_transposed: bool = False
    stored: StoredFormat | None = None

    @property
    def extents(self) -> Shape:
        """Shape that ``slices`` are taken of."""
        if self.is_transposed:
            *leading, into, out = self.shape
            return *leading, out, into
        return self.view or self.shape

    @property
    def is_quantized(self) -> bool:
        """Whether the checkpoint stores it quantized."""
        return self.scheme is not None

    @property
    def scheme(self) -> Scheme | None:
        """Scheme in which the checkpoint stores it quantized; None: it does not."""
        return self.stored.scheme if self.stored is not None and self.stored.is_quantized else None


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight as layers use it.

    Attributes:
        name: name in the model: ``layers.0.qkv.weight``.
        shape: ``[out, in]`` of a matrix, ``[E, out, in]`` of one matrix an expert, any shape of others.
        sources: the checkpoint's tensors; together they cover the weight once.
        alternatives: sources of other exporters' checkpoints, each covering it once; a checkpoint's tensors
            decide (:mod:`wisp_plan.weights.stored`).
        role: purpose.
        shard_axis: axis along which ranks split the weight; None: every rank has it whole.
        shard_unit: indices of that axis that stay together, such as the rows of a head.
        is_on_first_rank: whether only rank 0 has it, as the bias of a layer whose ranks give partial sums.
        rows: structure of the rows, from which a device chooses their permutation.
        dtype: safetensors' name of the dtype in which it is held; None: the device's own.
        held: packed format in which a GPU holds it; None: it is held unquantized.
        compact: compact format in which the CPU holds it; None: it is held in float32.
        is_rounded: whether ``--quantization`` rounds it, if the checkpoint stores it unquantized.
    """

    name: str
    shape: Shape
    sources: tuple[WeightSource, ...]
    role: Role
    shard_axis: int | None = None
    shard_unit: int = 1
    is_on_first_rank: bool = False
    rows: GateUpRows | RotaryRows | None = None
    dtype: str | None = None
    held: PackedFormat | None = None
    compact: CompactFormat | None = None
    is_rounded: bool = True
    alternatives: tuple[tuple[WeightSource, ...], ...] = ()

    @property
    def is_matrix(self) -> bool:
        """Whether GEMMs or the embedding read it: one ``[out, in]`` matrix, or several."""
        return self.role in _MATRICES

    @property
    def is_of_experts(self) -> bool:
        """Whether it is a matrix an expert, ``[E, out, in]``."""
        return self.is_matrix and len(self.shape) > 2

    @property
    def stored(self) -> StoredFormat | None:
        """Format in which a checkpoint stores all of it quantized; None: unquantized, or in several."""
        formats = {source.stored if source.is_quantized else None for source in self.sources}
        return formats.pop() if len(formats) == 1 else None


def part_of(tensor: str, shape: Shape, slices: Iterable[range], at: Shape) -> WeightSource:
    """Return the source that takes ``slices`` of a tensor, one an axis."""
    return WeightSource(tensor, shape, tuple(slices), at)


def stacked(*tensors: tuple[str, Shape]) -> tuple[WeightSource, ...]:
    """Return the sources of whole tensors, (name, shape), stacked along the first axis."""
    sources, first = [], 0
    for tensor, shape in tensors:
        at = (first,) + (0,) * (len(shape) - 1)
        sources.append(WeightSource(tensor, shape, tuple(map(range, shape)), at))
        first += shape[0]
    return tuple(sources)


def flat_index(shape: Shape, at: Shape) -> int:
    """Return the row-major position of index ``at`` in an array of ``shape``."""
    flat = 0
    for extent, index in zip(shape, at, strict=True):
        flat = flat * extent + index
    return flat
