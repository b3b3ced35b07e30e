"""The weights of a model: one allocation, cut in the order in which a step reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from zlib import crc32

from wisp_plan.weights.layout import ALIGNMENT_ELEMENTS, padded
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.gemm import Matrix
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.upload import RowPermutation, WeightDestination


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
        permutation: row permutation that a GPU may choose; interleaved gate and up have equally many rows.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    permutation: RowPermutation = "plain"


class Weights:
    """Named weights in one arena of a device.

    Args:
        ops: the device.
        parameters: in the order in which they shall lie.
    """

    def __init__(self, ops: Ops, parameters: Iterable[Parameter]) -> None:
        self._ops = ops
        self._listed = [replace(one, permutation=ops.row_permutation(one.permutation)) for one in parameters]
        sizes = [_elements(ops, one.shape) for one in self._listed]
        self.arena: Array = ops.weight_arena(sum(padded(size, ALIGNMENT_ELEMENTS) for size in sizes))
        self._named: dict[str, Array | Matrix] = {}
        self._places: dict[str, tuple[Parameter, int]] = {}
        start = 0
        for one, size in zip(self._listed, sizes, strict=True):
            storage = self.arena[start : start + size]
            self._named[one.name] = _weight(ops, storage, one)
            self._places |= dict(_places(one))
            start += padded(size, ALIGNMENT_ELEMENTS)

    def __getitem__(self, name: str) -> Array | Matrix:
        return self._named[name]

    def get(self, name: str) -> Array | Matrix | None:
        """Return a weight, or None when the model has none of that name."""
        return self._named.get(name)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the checkpoint's tensors that fill these weights."""
        return tuple(self._places)

    def place(self, tensor: str, first: int, rows: int, dtype: str) -> WeightDestination:
        """Say where rows ``first:first + rows`` of a checkpoint's tensor belong.

        Args:
            dtype: of the tensor, as safetensors names it.
        """
        one, offset = self._places[tensor]
        return WeightDestination(
            self._named[one.name], one.permutation, offset + first, (rows, *one.shape[1:]), dtype
        )

    def randomize(self, seed: int) -> None:
        """Fill all weights with random numbers of a size at which a model's activations stay finite.

        Matrices get a variance of 1 over their inputs, norms lie about 1, biases about 0; padding stays 0.
        """
        for one in self._listed:
            is_norm = len(one.shape) == 1 and not one.name.endswith(".bias")
            deviation = one.shape[1] ** -0.5 if len(one.shape) == 2 else 0.05
            place = WeightDestination(self._named[one.name], one.permutation, 0, one.shape, "BF16")
            key = (seed & 0xFFFFFFFF) << 32 | crc32(one.name.encode())
            self._ops.randomize(place, key=key, mean=1.0 if is_norm else 0.0, deviation=deviation)


def _elements(ops: Ops, shape: tuple[int, ...]) -> int:
    return ops.matrix_elements(*shape) if len(shape) == 2 else math.prod(shape)


def _weight(ops: Ops, storage: Array, one: Parameter) -> Array | Matrix:
    if len(one.shape) == 1:
        return storage
    outputs, inputs = one.shape
    return ops.matrix(storage, outputs, inputs, one.permutation)


def _places(parameter: Parameter) -> Iterator[tuple[str, tuple[Parameter, int]]]:
    row = 0
    for part in parameter.parts:
        yield part.tensor, (parameter, row)
        row += part.rows
