"""Factors of a tensor that a calibration chose: scales moved between layers, and weights of errors."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_runtime.batch import Array


@dataclass(frozen=True, slots=True)
class TensorFactors:
    """Factors of one tensor; those between layers leave a model's results as they are.

    Attributes:
        inputs: ``[K]``, by which the columns of a weight are multiplied; None: 1.
        outputs: ``[N]``, by which the rows of a weight, or elements of a norm or bias, are divided; None: 1.
        importance: ``[K]``, weight of the squared error of each column; None: scales are not searched.
    """

    inputs: Array | None = None
    outputs: Array | None = None
    importance: Array | None = None

    def apply(self, values: Array, first: int = 0) -> Array:
        """Return float32 rows ``[R, K]`` or elements ``[R]``, from row ``first`` on, scaled."""
        if self.inputs is not None:
            values = values * self.inputs
        if self.outputs is not None:
            factors = self.outputs[first : first + len(values)]
            values = values / factors.reshape(-1, *(1,) * (values.ndim - 1))
        return values


NO_FACTORS = TensorFactors()
