"""Formats in which a checkpoint stores a model's projections, recognised by the tensors that it has.

A projection in a quantized format becomes several weights: its values, and one for each other part, such as
``layers.0.qkv.weight.scale``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import TensorsMismatch
from wisp_plan.spec.weight import WeightSource, WeightSpec
from wisp_plan.weights.formats import FORMATS, VALUES, StoredPart, WeightFormat, blocks


def as_stored(weights: Iterable[WeightSpec], tensors: Mapping[str, TensorInfo]) -> tuple[WeightSpec, ...]:
    """Return the weights in the formats of a checkpoint; unquantized where its tensors are of no format.

    Raises:
        TensorsMismatch: a part of a projection begins inside a block of scales.
    """
    return tuple(part for weight in weights for part in _parts(weight, _format_of(weight, tensors)))


def part_tensor(part: StoredPart, tensor: str) -> str:
    """Return the name of ``part`` of the projection whose unquantized name is ``tensor``."""
    return part.tensor.format(weight=tensor, layer=tensor.removesuffix(".weight"))


def part_shape(part: StoredPart, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of ``part`` of a projection of ``shape``."""
    *leading, out, into = shape
    return *leading, blocks(out, part.rows), blocks(into, part.columns)


def _format_of(weight: WeightSpec, tensors: Mapping[str, TensorInfo]) -> WeightFormat:
    if weight.role == "projection":
        for weight_format in FORMATS.values():
            if weight_format.stored and _has_all(weight_format, weight.sources[0], tensors):
                return weight_format
    return FORMATS["bf16"]


def _has_all(weight_format: WeightFormat, source: WeightSource, tensors: Mapping[str, TensorInfo]) -> bool:
    infos = (tensors.get(part_tensor(part, source.tensor)) for part in weight_format.stored)
    return all(
        info is not None and info.dtype in part.dtypes
        for info, part in zip(infos, weight_format.stored, strict=True)
    )


def _parts(weight: WeightSpec, weight_format: WeightFormat) -> Iterator[WeightSpec]:
    for part in weight_format.stored[1:]:
        sources = tuple(_source(weight, source, part) for source in weight.sources)
        shape = part_shape(replace(part, rows=part.rows or 1), weight.shape)
        yield WeightSpec(f"{weight.name}.{part.name}", shape, sources, "scale", dtype=part.dtype)
    if weight_format.name != weight.format:
        values = weight_format.stored[0]
        assert values.name == VALUES, f"{weight_format.name}: the values are not its first part"
        sources = tuple(_source(weight, source, values) for source in weight.sources)
        weight = replace(weight, sources=sources, format=weight_format.name)
    yield weight


def _source(weight: WeightSpec, source: WeightSource, part: StoredPart) -> WeightSource:
    """Return the source of a part that belongs to ``source`` of a projection."""
    *slices, rows, columns = source.slices
    *leading, first, _ = source.at
    at = _block(range(first, first + 1), part.rows or 1, weight).start
    view = part_shape(part, source.view or source.shape)
    shape = (*view[:-1], view[-1] // part.tail, part.tail) if part.tail else view
    return WeightSource(
        part_tensor(part, source.tensor),
        shape,
        (*slices, _block(rows, part.rows, weight), _block(columns, part.columns, weight)),
        (*leading, at, 0),
        None if shape == view else view,
        part.dtypes,
        1 if part.rows else len(rows),
    )


def _block(indices: range, block: int, weight: WeightSpec) -> range:
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
