"""Layout of a weight matrix in the CPU's memory: tiles of 32 outputs, each tile ``[in, 32]``.

A tile is read front to back with 32 sums kept in registers, so one row times the matrix runs at the speed
of reading it; ``docs/decisions/`` has the measurements. Nothing outside ``ops`` reads the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.quantization.compact_format import TILE_OUTPUTS
from wisp_runtime.batch import Array


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight matrix ``[out, in]`` in tiles.

    Attributes:
        tiles: ``[ceil(out / 32), in, 32]`` float32; zero beyond ``out``.
        outputs: rows of the matrix.
    """

    tiles: Array
    outputs: int

    @property
    def inputs(self) -> int:
        """Columns of the matrix."""
        return int(self.tiles.shape[1])


def packed_shape(outputs: int, inputs: int) -> tuple[int, int, int]:
    """Return the shape of the tiles of an ``[outputs, inputs]`` matrix."""
    return -(-outputs // TILE_OUTPUTS), inputs, TILE_OUTPUTS
