"""Rows of a matrix that the persistent kernel's thread blocks hold. Pure."""

from __future__ import annotations

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.model import ModelSpec, RepeatedLayers

BLOCK_ROWS = 64
"""Rows that a warpgroup multiplies at once: ``kBlockM``."""

TILE_ROWS = 16

MAX_SM_COUNT = 132
"""SMs of the largest Hopper; each runs one thread block."""

TILES_OF_GATES = 12
"""Tiles of Q, K, V and Z as which a block of a Gated DeltaNet's b and a counts at most: ``kTilesOfGates``."""

_ONE_BLOCK_HIDDEN = 4096
"""Up to this hidden size a cluster has one 64-row block of the residual: ``kResidualMBlocks``."""


def over_rows(spec: ModelSpec, layers: RepeatedLayers, blocks: int) -> str | None:
    """Return which matrix has more rows than ``blocks`` thread blocks hold; None if none has."""
    attention, delta_net = layers.attention, layers.delta_net
    rows = {"hidden_size": (spec.hidden, 1 if spec.hidden <= _ONE_BLOCK_HIDDEN else 2)}
    rows["Q, K and V"] = attention.projected_size, row_blocks(attention.projected_size)
    if delta_net is not None:
        projected = counted_rows(delta_net)
        rows["Q, K, V and Z"] = projected, row_blocks(projected)
    for name, (size, cluster_blocks) in rows.items():
        max_rows = blocks // 2 * cluster_blocks * BLOCK_ROWS
        if size > max_rows:
            return f"{name} has {size} rows, over the {max_rows} that {blocks} thread blocks hold"
    return None


def counted_rows(delta_net: DeltaNetSpec) -> int:
    """Return the rows of Q, K, V and Z, and those as which b and a count: ``kQkvzTiles``."""
    rows = delta_net.conv_size + delta_net.value_heads * delta_net.value_size
    gate_blocks = -(-2 * delta_net.value_heads // BLOCK_ROWS)
    tiles_a_cluster = rows // TILE_ROWS // (MAX_SM_COUNT // 2)
    return rows + gate_blocks * TILE_ROWS * max(0, min(TILES_OF_GATES, tiles_a_cluster - 1))


def row_blocks(rows: int) -> int:
    """Return the 64-row blocks that a cluster has of a projection, ``row_blocks`` of ``operands.cuh``."""
    return 2 if rows <= MAX_SM_COUNT // 2 * 2 * BLOCK_ROWS else 4
