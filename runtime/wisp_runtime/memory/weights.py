"""The weights of a model: one allocation, cut in the order in which a step reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wisp_runtime.batch import Array
from wisp_runtime.ops.backend import Matrix, Ops

_ALIGNMENT_ELEMENTS = 16  # 64 bytes of float32


@dataclass(frozen=True, slots=True)
class Part:
    """A checkpoint's tensor, and the rows of the parameter that it fills."""

    tensor: str
    rows: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight as a model wants it: one or more tensors of the checkpoint, stacked by rows.

    Attributes:
        name: what the model calls it.
        shape: ``[out, in]`` of a matrix, or ``[size]`` of a vector.
        parts: the checkpoint's tensors, top to bottom.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


class Weights:
    """Named weights in one arena of a device.

    Args:
        ops: the device.
        parameters: in the order in which they shall lie.
    """

    def __init__(self, ops: Ops, parameters: Iterable[Parameter]) -> None:
        self._ops = ops
        listed = list(parameters)
        sizes = [_padded(_elements(ops, one.shape)) for one in listed]
        self.arena: Array = ops.weight_arena(sum(sizes))
        self._named: dict[str, Array | Matrix] = {}
        self._places: dict[str, tuple[str, int]] = {}
        start = 0
        for one, size in zip(listed, sizes, strict=True):
            storage = self.arena[start : start + _elements(ops, one.shape)]
            self._named[one.name] = ops.matrix(storage, *one.shape) if len(one.shape) == 2 else storage
            self._places |= dict(_places(one))
            start += size

    def __getitem__(self, name: str) -> Array | Matrix:
        return self._named[name]

    def get(self, name: str) -> Array | Matrix | None:
        """Return a weight, or None when the model has none of that name."""
        return self._named.get(name)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the checkpoint's tensors that fill these weights."""
        return tuple(self._places)

    def store(self, tensor: str, first: int, rows: Array) -> None:
        """Write rows ``first:first + R`` of a checkpoint's tensor, host float32, where they belong."""
        name, offset = self._places[tensor]
        weight = self._named[name]
        if rows.ndim == 2:
            self._ops.store_rows(weight, offset + first, rows)
        else:
            self._ops.store_vector(weight, offset + first, rows)


def _elements(ops: Ops, shape: tuple[int, ...]) -> int:
    return ops.matrix_elements(*shape) if len(shape) == 2 else math.prod(shape)


def _padded(elements: int) -> int:
    return -(-elements // _ALIGNMENT_ELEMENTS) * _ALIGNMENT_ELEMENTS


def _places(parameter: Parameter) -> Iterator[tuple[str, tuple[str, int]]]:
    row = 0
    for part in parameter.parts:
        yield part.tensor, (parameter.name, row)
        row += part.rows
