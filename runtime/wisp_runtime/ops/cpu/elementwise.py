"""Activation and scaling of rows on the CPU: the reference functions behind checks of every shape."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops import reference
from wisp_runtime.ops.protocol import checks


class Elementwise:
    """Operations on numbers or rows one by one, as :class:`.ops.CpuOps` has them."""

    def silu_mul(self, gate_up: Array) -> Array:
        """See :func:`.reference.silu_mul`."""
        checks.rank("gate_up", gate_up, 2)
        if gate_up.shape[1] % 2:
            raise ShapeError(f"gate_up is {list(gate_up.shape)}; its columns must be gate and up, alike wide")
        return reference.silu_mul(gate_up)

    def scale(self, x: Array, factor: float) -> Array:
        """Multiply in place."""
        return np.multiply(x, np.float32(factor), out=x)

    def add_scaled(self, x: Array, residual: Array, factor: float, rows: Array | None = None) -> None:
        """See :func:`.reference.add_scaled`."""
        checks.added(x, residual, rows)
        reference.add_scaled(x, residual, factor, rows)
