"""Formats in which a checkpoint stores weights: by the tensors that it has, checked against its config.

A quantized weight is read from several tensors for each of its sources: values, scales, zero points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import TensorsMismatch
from wisp_plan.quantization.config import GGUF, stored_format
from wisp_plan.quantization.layer_names import LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.stored_format import VALUES, StoredFormat, StoredPart
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import COMPUTABLE_DTYPES, WeightSource, WeightSpec
from wisp_plan.weights.declaration import declare

_QUANTIZED_ROLES = ("projection", "head")
"""Roles of weights that a ``quantization_config`` means; of GGUF, every matrix."""

TRANSPOSED = StoredFormat(
    Scheme("transposed", "plain", 1, 1),
    (StoredPart(VALUES, "{weight}", COMPUTABLE_DTYPES, is_transposed=True),),
)
"""Format of unquantized matrices ``[in, out]``."""


@dataclass(frozen=True, slots=True)
class PartSource:
    """Part of a quantized weight's source: a tensor, and the elements of it that belong to the source.

    Attributes:
        part: the part.
        tensor: name in the checkpoint.
        shape: shape in which the checkpoint stores it.
        view: the same elements as ``[…, out, in]``, in units of the part; a transposed tensor's transpose.
        slices: indices of ``view`` that are taken, a range an axis.
    """

    part: StoredPart
    tensor: str
    shape: tuple[int, ...]
    view: tuple[int, ...]
    slices: tuple[range, ...]


def as_stored(
    weights: Iterable[WeightSpec],
    tensors: Mapping[str, TensorInfo],
    quantization: Quantization | None,
) -> tuple[WeightSpec, ...]:
    """Return the weights in the formats of a checkpoint, with the sources that it has.

    A tensor in a dtype that can be computed with is unquantized, whether or not a list names its layer.

    Raises:
        TensorsMismatch: a group does not divide columns; sources of one weight are in different formats,
            other than GGUF's; or a weight is stored in two ways.
    """
    chosen = (_as_exported(weight, tensors, quantization) for weight in weights)
    if quantization is None:
        return tuple(map(_unquantized, chosen))
    return tuple(_as_stored(weight, tensors, quantization) for weight in chosen)


def spec_as_stored(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Return ``spec`` without the quantization of layers whose tensors are not quantized.

    Configs name more layers than are quantized; the dtype of what is stored decides.
    """
    quantization = spec.quantization
    if quantization is None:
        return spec
    names = [
        name
        for weight in (_as_exported(declared, tensors, quantization) for declared in declare(spec))
        if weight.role in _QUANTIZED_ROLES
        for source in weight.sources
        if quantization.scheme_of(name := source.tensor.removesuffix(".weight"))
        and _is_computable(tensors.get(source.tensor))
    ]
    rules = (Rule(LayerNames(tuple(names)), None), *quantization.rules) if names else quantization.rules
    return replace(spec, quantization=replace(quantization, rules=rules))


def part_sources(weight: WeightSpec, source: WeightSource) -> tuple[PartSource, ...]:
    """Return the tensors that a source of a quantized weight is read from, the values first.

    Raises:
        TensorsMismatch: the source begins inside a block of scales.
    """
    assert source.stored is not None
    return tuple(_part_source(weight, source, part) for part in source.stored.parts)


def _unquantized(weight: WeightSpec) -> WeightSpec:
    if not any(source.is_transposed for source in weight.sources):
        return weight
    return replace(weight, sources=tuple(replace(each, stored=_plain(each)) for each in weight.sources))


def _plain(source: WeightSource) -> StoredFormat | None:
    return TRANSPOSED if source.is_transposed else None


def _as_exported(
    weight: WeightSpec, tensors: Mapping[str, TensorInfo], quantization: Quantization | None
) -> WeightSpec:
    """Return a weight with the sources of which a checkpoint has the first; of none, its own.

    Raises:
        TensorsMismatch: a checkpoint stores the weight in two ways, which may differ.
    """
    if not weight.alternatives:
        return weight
    stored = {
        source.tensor: sources
        for sources in (weight.sources, *weight.alternatives)
        if (source := _first_there(sources, tensors, quantization))
    }
    if len(stored) > 1:
        one, other, *_ = stored
        raise TensorsMismatch(
            f"{one} and {other} are both stored, which are the same weights in two ways. "
            "Choose a checkpoint that has each weight once."
        )
    return replace(weight, sources=next(iter(stored.values()), weight.sources), alternatives=())


def _first_there(
    sources: Sequence[WeightSource], tensors: Mapping[str, TensorInfo], quantization: Quantization | None
) -> WeightSource | None:
    """Return a source that a checkpoint has; of those that it stores quantized, the first stands for all."""
    first = sources[0]
    if _is_there(first, tensors, quantization):
        return first
    return next((source for source in sources if source.tensor in tensors), None)


def _is_there(
    source: WeightSource, tensors: Mapping[str, TensorInfo], quantization: Quantization | None
) -> bool:
    """Return whether a checkpoint has a source's tensor, or one of those that store it quantized."""
    if source.tensor in tensors or quantization is None:
        return source.tensor in tensors
    scheme = quantization.scheme_of(source.tensor.removesuffix(".weight"))
    parts = () if scheme is None else stored_format(scheme).parts
    return any(
        _tensor_of(name, source.tensor) in tensors for part in parts for name in (part.tensor, part.alias)
    )


def _as_stored(
    weight: WeightSpec, tensors: Mapping[str, TensorInfo], quantization: Quantization
) -> WeightSpec:
    is_gguf = quantization.method == GGUF
    if weight.role not in _QUANTIZED_ROLES and not (is_gguf and weight.is_matrix):
        return weight
    formats = [_format_of_source(source, tensors, quantization) for source in weight.sources]
    pairs = list(zip(weight.sources, formats, strict=True))
    if not is_gguf:
        _require_alike(pairs)
    return replace(weight, sources=tuple(replace(source, stored=stored) for source, stored in pairs))


def _require_alike(pairs: Sequence[tuple[WeightSource, StoredFormat | None]]) -> None:
    first, stored = pairs[0]
    for source, other in pairs[1:]:
        if other != stored:
            raise TensorsMismatch(
                f"{source.tensor} is stored {_name(other)}, and {first.tensor}, which is computed together "
                f"with it, {_name(stored)}. Choose a checkpoint that stores both alike."
            )


def _format_of_source(
    source: WeightSource, tensors: Mapping[str, TensorInfo], quantization: Quantization
) -> StoredFormat | None:
    if _is_computable(tensors.get(source.tensor)):
        return _plain(source)
    scheme = quantization.scheme_of(source.tensor.removesuffix(".weight"))
    if scheme is None:
        return _plain(source)
    columns = source.extents[-1]
    if scheme.rows == 1 and scheme.columns and columns % scheme.columns:
        raise TensorsMismatch(
            f"{source.tensor} has {columns} columns, which do not split into the groups of {scheme.columns} "
            "that quantization_config says share a scale. Choose a checkpoint whose groups divide them."
        )
    return _as_named(stored_format(scheme), source.tensor, tensors)


def _as_named(stored: StoredFormat, weight: str, tensors: Mapping[str, TensorInfo]) -> StoredFormat:
    """Return a format whose parts have the names that the tensors of ``weight`` have."""

    def named(part: StoredPart) -> StoredPart:
        has_name, has_alias = (_tensor_of(name, weight) in tensors for name in (part.tensor, part.alias))
        return replace(part, tensor=part.alias) if part.alias and has_alias and not has_name else part

    parts = tuple(map(named, stored.parts))
    return stored if parts == stored.parts else replace(stored, parts=parts)


def _tensor_of(name: str, weight: str) -> str:
    """Return the name of a part's tensor, by the name of its layer's weight."""
    return name.format(weight=weight, layer=weight.removesuffix(".weight"))


def _is_computable(info: TensorInfo | None) -> bool:
    return info is not None and info.dtype in COMPUTABLE_DTYPES


def _name(stored: StoredFormat | None) -> str:
    return f"as {stored.name}" if stored is not None and stored.is_quantized else "unquantized"


def _part_source(weight: WeightSpec, source: WeightSource, part: StoredPart) -> PartSource:
    assert source.stored is not None
    *leading, out, into = source.extents
    *outer, rows, columns = source.slices
    view = (*leading, blocks(out, part.rows), blocks(into, part.columns))
    shape = (*view[:-1], view[-1] // part.tail, part.tail) if part.tail else view
    if part.is_transposed:
        shape = (*view[:-2], view[-1], view[-2])
    if source.stored.scheme.is_act_ordered and part.name in ("scale", "zero_point"):
        columns = range(into)  # those that are taken are of any group
    slices = (*outer, _blocks_of(rows, part.rows, weight), _blocks_of(columns, part.columns, weight))
    return PartSource(part, _tensor_of(part.tensor, source.tensor), shape, view, slices)


def blocks(extent: int, block: int) -> int:
    """Count the blocks along an axis; a block of 0 is the whole axis."""
    return -(-extent // block) if block else 1


def _blocks_of(indices: range, block: int, weight: WeightSpec) -> range:
    """Return the blocks that ``indices`` of an axis lie in."""
    if block == 1:
        return indices
    if block == 0:
        return range(1)
    if indices.start % block or indices.step != 1:
        raise TensorsMismatch(
            f"{weight.name}: a part begins at {indices.start}, inside a block of {block} that share a scale. "
            "Choose a checkpoint in another format."
        )
    return range(indices.start // block, -(-indices.stop // block))
