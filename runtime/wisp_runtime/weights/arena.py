"""Weights of a model on a device: one allocation, in the order in which a step reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from zlib import crc32

from wisp_plan.spec.weight import WeightSpec, flat_index
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.storage import HeldWeight, WeightOps
from wisp_runtime.ops.protocol.weights.upload import WeightDestination


class Weights:
    """Named weights in one arena of a device.

    Args:
        ops: the device.
        specs: the weights, in the order in which they lie.

    Attributes:
        specs: the weights' specs by name.
        arena: ``[bytes]`` uint8.
    """

    def __init__(self, ops: WeightOps, specs: Iterable[WeightSpec]) -> None:
        self._ops = ops
        self.specs = {spec.name: spec for spec in specs}
        sizes = [ops.weight_bytes(spec) for spec in self.specs.values()]
        self.arena: Array = ops.weight_arena(sum(sizes))
        self._held: dict[str, HeldWeight] = {}
        start = 0
        for spec, size in zip(self.specs.values(), sizes, strict=True):
            self._held[spec.name] = ops.weight(spec, self.arena[start : start + size])
            start += size

    def __getitem__(self, name: str) -> HeldWeight:
        return self._held[name]

    def get(self, name: str) -> HeldWeight | None:
        """Return a weight, or None when the model has none of that name."""
        return self._held.get(name)

    def destination(
        self, name: str, at: tuple[int, ...], shape: tuple[int, ...], dtype: str
    ) -> WeightDestination:
        """Return the destination of some rows of a weight.

        Args:
            name: the weight.
            at: index in the weight of the rows' first element.
            shape: ``(R, in)`` as stored, of one matrix; ``(R,)`` or more of another weight, but of one vector
                where vectors are permuted, such as an expert's bias.
            dtype: dtype of the rows, by safetensors' name.
        """
        spec, weight = self.specs[name], self._held[name]
        permutation = self._ops.row_permutation(spec)
        if _has_vectors(spec):
            *leading, first = at
            vector = weight.reshape(-1, spec.shape[-1])[flat_index(spec.shape[:-1], tuple(leading))]
            return WeightDestination(vector, permutation, first, (math.prod(shape),), dtype)
        if not spec.is_matrix:
            flat = weight.reshape(-1)
            return WeightDestination(
                flat, permutation, flat_index(spec.shape, at), (math.prod(shape),), dtype
            )
        *leading, first, _ = at
        if leading:
            weight = weight[flat_index(spec.shape[:-2], tuple(leading))]
        return WeightDestination(weight, permutation, first, shape, dtype)

    def randomize(self, seed: int) -> None:
        """Fill all weights with random numbers of a size at which a model's activations stay finite.

        Matrices get a variance of 1 over their inputs, norms lie about 1, others about 0; padding stays 0.
        """
        for spec in self.specs.values():
            deviation = spec.shape[-1] ** -0.5 if spec.is_matrix else 0.05
            mean = 1.0 if spec.role == "norm" else 0.0
            for name, at, shape in _wholes(spec):
                destination = self.destination(spec.name, at, shape, "BF16")
                key = (seed & 0xFFFFFFFF) << 32 | crc32(name.encode())
                self._ops.randomize(destination, key=key, mean=mean, deviation=deviation)


def _has_vectors(spec: WeightSpec) -> bool:
    """Return whether a weight is vectors whose numbers belong to rows of matrices: a bias of each expert."""
    return not spec.is_matrix and spec.rows is not None and len(spec.shape) > 1


def _wholes(spec: WeightSpec) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """List a weight's matrices or vectors, or the weight itself: a name, its index and its shape."""
    axes = 2 if spec.is_matrix else 1 if _has_vectors(spec) else len(spec.shape)
    own = spec.shape[len(spec.shape) - axes :]
    indices = list(product(*map(range, spec.shape[: len(spec.shape) - axes])))
    for number, leading in enumerate(indices):
        name = f"{spec.name}.{number}" if leading else spec.name
        yield name, (*leading, *(0 for _ in own)), own
