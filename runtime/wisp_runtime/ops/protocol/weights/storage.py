"""Storage of weights on a device: the arena in bytes, weights in it, and uploads into them."""

from __future__ import annotations

from typing import Any, Protocol

from wisp_plan.spec.weight import WeightSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation
from wisp_runtime.ops.protocol.weights.upload import WeightDestination, WeightUploader

HeldWeight = Any  # an Array, a Matrix, or a tuple of matrices of a weight [E, out, in]


class NamedWeights(Protocol):
    """Weights of a model by their names."""

    def __getitem__(self, name: str) -> HeldWeight: ...

    def get(self, name: str) -> HeldWeight | None:
        """Return a weight, or None when the model has none of that name."""
        ...


class WeightOps(Protocol):
    """Memory for weights and the KV cache."""

    def weight_bytes(self, weight: WeightSpec) -> int:
        """Return the bytes of a weight in the arena, its padding and the next one's alignment included.

        Raises:
            KernelsMissing: the device can neither compute with the weight's format nor dequantize it.
        """
        ...

    def weight_arena(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8 for all weights at once, zeroed and aligned."""
        ...

    def weight(self, weight: WeightSpec, storage: Array) -> HeldWeight:
        """Return the weight that lies in ``storage``, ``[weight_bytes(weight)]`` of the arena."""
        ...

    def row_permutation(self, weight: WeightSpec) -> RowPermutation:
        """Return the permutation in which this device holds the weight's rows."""
        ...

    def uploader(self, total_bytes: int) -> WeightUploader:
        """Return an uploader of a checkpoint's rows, ``total_bytes`` in all, into weights of the arena."""
        ...

    def randomize(self, destination: WeightDestination, *, key: int, mean: float, deviation: float) -> None:
        """Fill a whole weight with :func:`.reference.random_values`; padding stays zero."""
        ...

    def from_host(self, array: Array) -> Array:
        """Return a host array as an array of this device."""
        ...

    def to_host(self, array: Array) -> Array:
        """Return an array of this device as a host array of float32; waits for the device."""
        ...
