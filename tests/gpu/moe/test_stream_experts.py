"""Both GEMMs of experts of few tokens by Hopper's kernel: the bits of the portable ones."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from moe_cases import Mixture, Moe, bits, spread  # noqa: E402

from wisp_plan.spec.moe import RouterSpec  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device  # noqa: E402
from wisp_runtime.ops.cuda.moe.plan import Tile  # noqa: E402
from wisp_runtime.ops.cuda.moe.stream_experts import StreamExperts  # noqa: E402
from wisp_runtime.ops.cuda.moe.stream_plan import max_stream_tokens  # noqa: E402
from wisp_runtime.ops.protocol.moe import ExpertWeights  # noqa: E402

FORMATS = ["bf16", "fp8_block", "mxfp4_fields"]


@pytest.fixture
def moe(device):
    if not device.arch.startswith("sm_90"):
        pytest.skip("Hopper's kernels")
    return Moe(device)


def takes(moe, weights, tokens, width=8):
    into, down = (moe._experts.matrices(held) for held in (weights.gate_up, weights.down))
    return StreamExperts(moe._device).takes(into, down, tokens, Tile(width))


def check(moe, weights, x, ordered):
    """Compare launch after launch with the portable kernels."""
    assert takes(moe, weights, len(x), ordered.tile.width)
    found = [bits(moe._experts.multiply(x, weights, ordered)) for _ in range(3)]
    inner = moe._experts.multiply_in(x, weights, ordered)
    expected = bits(moe._experts.multiply_out(inner, weights, ordered))
    assert all(np.array_equal(each, expected) for each in found)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu", "relu2"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_results_have_the_bits_of_the_portable_kernels(moe, random, name, activation, has_bias):
    mixture = Mixture(name, 4, 320, 192, activation, has_bias=has_bias)
    for tokens in (1, 3, 8):
        x = to_device(random.standard_normal((tokens, 320), np.float32).astype(BF16))
        check(moe, mixture.weights, x, moe._sorter(to_device(spread(tokens, 2, 4, random)), 4, tile=Tile(8)))


@pytest.fixture(scope="module", params=FORMATS)
def many(request):
    """Experts that have twice as many items as a GPU has blocks, for eight tokens."""
    return Mixture(request.param, 24, 1088, 384)


@pytest.mark.parametrize("kind", ["random", "one"])
def test_any_number_of_items_is_taken(moe, random, many, kind):
    limit = max_stream_tokens(getattr(many.into.held[0], "packed", None))
    for tokens in (1, 2, 4, 8, *range(21, limit + 1, 43)):
        x = to_device(random.standard_normal((tokens, 1088), np.float32).astype(BF16))
        experts = to_device(spread(tokens, 12, 24, random, kind))
        check(moe, many.weights, x, moe._sorter(experts, 24, tile=Tile(8)))


@pytest.mark.parametrize("name", FORMATS)
def test_the_shared_expert_is_one_of_them(moe, random, name):
    mixture = Mixture(name, 17, 384, 256)
    into, down = mixture.weights.gate_up, mixture.weights.down
    weights = ExpertWeights(into[:16], down[:16], shared=(into[16], down[16]))
    router = to_device((random.standard_normal((16, 384)) / 20).astype(BF16))
    for tokens in (1, 7, 8):
        x = to_device(random.standard_normal((tokens, 384), np.float32).astype(BF16))
        moe.route(x, router, RouterSpec(16, 4), joins_shared=True)
        assert moe._sorted.has_shared
        check(moe, weights, x, moe._sorted)


def test_other_sizes_formats_and_more_tokens_are_left_to_the_portable_kernels(moe):
    for name in FORMATS:
        fits, limit = Mixture(name, 8, 256, 128).weights, 64 if name == "mxfp4_fields" else 8
        assert takes(moe, fits, limit)
        assert not takes(moe, fits, limit + 1)
        assert not takes(moe, fits, 8, width=16)
    for name, hidden, inner in (("bf16", 264, 128), ("bf16", 256, 72), ("int4", 256, 128)):
        assert not takes(moe, Mixture(name, 8, hidden, inner).weights, 1)
