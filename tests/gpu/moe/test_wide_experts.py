"""Experts with many tokens each, by Hopper's kernels, against float32 and the portable ones."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from moe_cases import Mixture, Moe, bits, float32, spread  # noqa: E402

from wisp_runtime.ops.cuda.device.arrays import BF16, to_device  # noqa: E402
from wisp_runtime.ops.cuda.moe.plan import PACKED_WIDE_TOKENS, WIDE_TOKENS, Tile, mma_tile  # noqa: E402
from wisp_runtime.ops.protocol.moe import Routing  # noqa: E402


@pytest.fixture
def moe(device):
    if not device.arch.startswith("sm_90"):
        pytest.skip("Hopper's kernels")
    return Moe(device)


def mixed(moe, mixture, x, experts, weights, tile):
    """Return the sums by the kernels of a tile."""
    routing = Routing(to_device(experts), to_device(weights))
    ordered = moe._sorter(routing.experts, mixture.count, tile=tile)
    return moe.combined(moe._experts(x, routing, ordered, mixture.weights, None)).copy()


def routed(random, tokens, chosen, experts, kind="random"):
    chosen_experts = spread(tokens, chosen, experts, random, kind)
    return chosen_experts, random.random(chosen_experts.shape, np.float32)


WIDTHS = [*(("bf16", width) for width in WIDE_TOKENS), ("fp8_block", PACKED_WIDE_TOKENS)]


@pytest.mark.parametrize(("name", "width"), WIDTHS)
@pytest.mark.parametrize(
    ("experts", "chosen", "hidden", "inner", "has_bias"),
    [(8, 2, 256, 200, True), (64, 6, 136, 72, False), (8, 3, 2048, 768, False), (5, 3, 1032, 136, True)],
)
@pytest.mark.parametrize("kind", ["random", "one"])
def test_sums_are_those_of_the_chosen_experts(
    moe, random, name, width, experts, chosen, hidden, inner, has_bias, kind
):
    mixture = Mixture(name, experts, hidden, inner, has_bias=has_bias)
    for tokens in (1, 130, 1000):
        x = random.standard_normal((tokens, hidden), np.float32).astype(BF16)
        routing = routed(random, tokens, chosen, experts, kind)
        found = float32(mixed(moe, mixture, to_device(x), *routing, Tile(width, is_wide=True)))
        expected, size = mixture.expected(x, *routing)
        error = np.abs(found - expected)
        assert (error <= 2**-7 * (size + np.abs(expected)) + 1e-5).all(), float((error / (size + 1e-5)).max())


@pytest.mark.parametrize("name", ["bf16", "fp8_block"])
def test_a_row_has_the_same_bits_at_every_tile_and_batch_and_nan_stays_in_its_own(moe, random, name):
    mixture = Mixture(name, 16, 384, 128)
    widths = [width for each, width in WIDTHS if each == name]
    experts, weights = routed(random, 2048, 4, 16)
    held = to_device(random.standard_normal((2048, 384), np.float32).astype(BF16))
    complete = bits(mixed(moe, mixture, held, experts, weights, Tile(widths[-1], is_wide=True)))
    for width in widths:
        for first, end in ((0, 2048), (5, 6), (5, 305)):
            part = held[first:end], experts[first:end], weights[first:end]
            found = bits(mixed(moe, mixture, *part, Tile(width, is_wide=True)))
            assert np.array_equal(found, complete[first:end])
    held[9] = to_device(np.full(384, np.nan, BF16))
    harmed = bits(mixed(moe, mixture, held, experts, weights, Tile(widths[0], is_wide=True)))
    assert np.array_equal(np.delete(harmed, 9, 0), np.delete(complete, 9, 0))
    assert np.isnan(harmed[9].view(BF16).astype(np.float32)).all()


@pytest.mark.parametrize(("name", "width"), [("bf16", 192), ("fp8_block", PACKED_WIDE_TOKENS)])
def test_many_tokens_take_them_and_the_same_result_comes_again(moe, random, name, width):
    mixture = Mixture(name, 16, 512, 256)
    experts, weights = routed(random, 4096, 4, 16)
    x = to_device(random.standard_normal((4096, 512), np.float32).astype(BF16))
    routing = Routing(to_device(experts), to_device(weights))
    assert moe._experts.tile(experts.size, 16, mixture.weights) == Tile(width, is_wide=True)
    results = [bits(moe.mixture(x, routing, mixture.weights)) for _ in range(20)]
    assert all(np.array_equal(result, results[0]) for result in results)
    portable = float32(mixed(moe, mixture, x, experts, weights, mma_tile(experts.size, 16)))
    assert np.abs(results[0].view(BF16).astype(np.float32) - portable).max() < 0.02 * np.abs(portable).max()
