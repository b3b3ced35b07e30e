"""Pairs of a token and an expert, sorted by expert on the GPU, against a stable sort."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from moe_cases import spread  # noqa: E402

from wisp_runtime.ops.cuda.device.arrays import to_device  # noqa: E402
from wisp_runtime.ops.cuda.moe.sorting import PairSorter  # noqa: E402


@pytest.mark.parametrize("tokens", [1, 7, 64, 300, 2048, 8192])
@pytest.mark.parametrize(("chosen", "count"), [(1, 8), (2, 8), (4, 32), (8, 128), (8, 256), (10, 512)])
@pytest.mark.parametrize("kind", ["random", "one"])
def test_the_order_is_that_of_a_stable_sort(device, random, tokens, chosen, count, kind):
    experts = spread(tokens, chosen, count, random, kind)
    counts = to_device(np.full((3, 2, count), 5, np.int64))
    result = PairSorter(device)(to_device(experts), count, counts[1])
    order = np.argsort(experts.reshape(-1), kind="stable")
    assert np.array_equal(cp.asnumpy(result.rows), order // chosen)
    assert np.array_equal(cp.asnumpy(result.positions).reshape(-1)[order], np.arange(order.size))
    per_expert = np.bincount(experts.reshape(-1), minlength=count)
    expected = np.full((3, 2, count), 5)
    expected[1] += [per_expert, per_expert > 0]
    assert np.array_equal(cp.asnumpy(counts), expected)
    ends, width = np.cumsum(per_expert), result.tile.width
    tiles = cp.asnumpy(result.tiles)[: int(result.tile_count[0])]
    assert tiles.tolist() == [
        [expert, first, min(end, first + width), 0]
        for expert, end in enumerate(ends)
        for first in range(end - per_expert[expert], end, width)
    ]
