"""Rows of the projections of Gated DeltaNet: clusters share them, and none has more than its blocks hold."""

from itertools import pairwise

import pytest

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.persistent.row_limits import (
    MAX_SM_COUNT,
    TILES_OF_GATES,
    counted_rows,
    row_blocks,
)


@pytest.mark.parametrize("key_heads", [8, 12, 16, 20])
@pytest.mark.parametrize("sharers", [1, 2, 3])
def test_clusters_share_all_tiles_and_none_has_too_many(key_heads, sharers):
    delta_net = DeltaNetSpec(key_heads, key_heads * sharers, key_size=128, value_size=128)
    counted = counted_rows(delta_net) // 16
    tiles = (delta_net.conv_size + delta_net.value_heads * delta_net.value_size) // 16
    gate_blocks = -(-2 * delta_net.value_heads // 64)
    fewer, most = (counted - tiles) // gate_blocks, 4 * row_blocks(counted * 16)
    for clusters in range(-(-counted // most), MAX_SM_COUNT // 2 + 1):  # fewer clusters are refused
        first = [
            counted * cluster // clusters - fewer * (gate_blocks * cluster // clusters)
            for cluster in range(clusters + 1)
        ]
        counts = [end - begin for begin, end in pairwise(first)]
        assert first[-1] == tiles
        assert min(counts) >= 0
        assert max(counts) <= most, f"{clusters} clusters"


def test_b_and_a_count_as_the_kernel_says():
    source = (Catalogue().root / "hopper/persistent/phases/delta_projection.cuh").read_text()
    assert f"min_of({TILES_OF_GATES}, kQkvzRows / kTileM / {MAX_SM_COUNT // 2} - 1)" in source
