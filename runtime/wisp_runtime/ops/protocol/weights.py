"""Storage of weights on a device: the arena, matrices in it, and uploads into them."""

from __future__ import annotations

from typing import Protocol

from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.gemm import Matrix
from wisp_runtime.ops.protocol.upload import RowPermutation, WeightDestination, WeightUploader


class WeightOps(Protocol):
    """Memory for weights and the KV cache."""

    def matrix_elements(self, outputs: int, inputs: int) -> int:
        """Return how many elements a stored ``[outputs, inputs]`` matrix takes, padding included."""
        ...

    def weight_arena(self, elements: int) -> Array:
        """Allocate ``[elements]`` for all weights at once, zeroed, its start aligned to 128 bytes or more."""
        ...

    def row_permutation(self, permutation: RowPermutation) -> RowPermutation:
        """Return the permutation of rows that may be held in ``permutation``: that one, or plain."""
        ...

    def matrix(
        self, storage: Array, outputs: int, inputs: int, permutation: RowPermutation = "plain"
    ) -> Matrix:
        """Make ``storage``, ``[matrix_elements(outputs, inputs)]`` of the arena, a matrix."""
        ...

    def uploader(self, total_bytes: int) -> WeightUploader:
        """Return an uploader of a checkpoint's rows, ``total_bytes`` in all, into weights of the arena."""
        ...

    def randomize(self, destination: WeightDestination, *, key: int, mean: float, deviation: float) -> None:
        """Fill a whole weight with :func:`.reference.random_values`; padding stays zero."""
        ...

    def kv_arena(self, shape: tuple[int, ...]) -> Array:
        """Allocate keys or values, ``[L, P, Hkv, Tb, Dh]``; the contents are undefined."""
        ...

    def from_host(self, array: Array) -> Array:
        """Return a host array as an array of this device."""
        ...

    def to_host(self, array: Array) -> Array:
        """Return an array of this device as a host array of float32; waits for the device."""
        ...
