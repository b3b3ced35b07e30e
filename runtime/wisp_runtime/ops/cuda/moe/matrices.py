"""Matrices of a mixture's experts, seen as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.gemm.linear import Matrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """Matrices of all experts, at equal distances.

    Attributes:
        first: matrix of expert 0.
        count: E.
        distance_bytes: distance of two experts' matrices.
    """

    first: Matrix
    count: int
    distance_bytes: int

    @classmethod
    def of(cls, matrices: tuple[Matrix, ...]) -> ExpertMatrices:
        """See a tuple of matrices as one.

        Raises:
            ShapeError: they differ in shape or format, or are not equally far apart.
        """
        first, addresses = matrices[0], [matrix.storage.data.ptr for matrix in matrices]
        distance = addresses[1] - addresses[0] if len(matrices) > 1 else first.storage.nbytes
        expected = [addresses[0] + distance * expert for expert in range(len(matrices))]
        is_even = addresses == expected and distance % 16 == 0 and addresses[0] % 16 == 0
        if not is_even or len({kind_of(matrix) for matrix in matrices}) > 1:
            raise ShapeError("experts: matrices must be alike, and lie at equal multiples of 16 bytes")
        return cls(first, len(matrices), distance)

    def is_followed_by(self, matrix: Matrix) -> bool:
        """Return whether a matrix is of the same kind, and lies where another expert's would."""
        address = self.first.storage.data.ptr + self.count * self.distance_bytes
        return bool(matrix.storage.data.ptr == address) and kind_of(matrix) == kind_of(self.first)


def kind_of(matrix: Matrix) -> tuple[Any, ...]:
    """Return what matrices have in common that one kernel multiplies."""
    packed = matrix.packed.name if isinstance(matrix, QuantizedStorage) else "bf16"
    return matrix.outputs, matrix.inputs, matrix.permutation, packed
