"""Mixtures of experts on the GPU, against float32 of the same weights."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from moe_cases import Mixture, Moe, bits, float32, spread  # noqa: E402

from wisp_plan.quantization.packed_format import EXPERT_FORMATS  # noqa: E402
from wisp_plan.spec.moe import RouterSpec  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device  # noqa: E402
from wisp_runtime.ops.protocol.moe import ExpertWeights, Routing  # noqa: E402

TOKENS = [1, 7, 64, 300, 2048]
TOLERANCE = 2**-7  # of what is rounded to bf16: results, those of experts, and their inner ones


@pytest.fixture(scope="module")
def moe(device):
    return Moe(device)


def routed(random, tokens, chosen, experts, kind="random"):
    chosen_experts = spread(tokens, chosen, experts, random, kind)
    weights = random.random(chosen_experts.shape, np.float32)
    return chosen_experts, weights / weights.sum(1, keepdims=True)


def check(moe, mixture, x, experts, weights, added=None):
    routing = Routing(to_device(experts), to_device(weights))
    more = None if added is None else to_device(added)
    found = float32(moe.mixture(to_device(x), routing, mixture.weights, more))
    expected, size = mixture.expected(x, experts, weights, added)
    error = np.abs(found - expected)
    assert (error <= TOLERANCE * (size + np.abs(expected)) + 1e-5).all(), float((error / (size + 1e-5)).max())


@pytest.mark.parametrize(
    ("experts", "chosen", "hidden", "inner"),
    [(8, 2, 256, 200), (64, 6, 136, 72), (128, 8, 192, 96), (256, 8, 64, 64), (8, 1, 1032, 136)],
)
@pytest.mark.parametrize("kind", ["random", "one"])
def test_sums_are_those_of_the_chosen_experts(moe, random, experts, chosen, hidden, inner, kind):
    mixture = Mixture("bf16", experts, hidden, inner)
    for tokens in TOKENS:
        x = random.standard_normal((tokens, hidden), np.float32).astype(BF16)
        check(moe, mixture, x, *routed(random, tokens, chosen, experts, kind))


@pytest.mark.parametrize("name", EXPERT_FORMATS)
@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
def test_every_format_is_multiplied(moe, random, name, activation):
    mixture = Mixture(name, 8, 384, 256, activation, has_bias=activation != "silu")
    for tokens in TOKENS:
        x = random.standard_normal((tokens, 384), np.float32).astype(BF16)
        check(moe, mixture, x, *routed(random, tokens, 2, 8))


@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu", "relu2"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_activations_biases_and_what_is_added(moe, random, activation, has_bias):
    mixture = Mixture("bf16", 32, 264, 136, activation, has_bias=has_bias)
    for tokens in TOKENS:
        x, added = random.standard_normal((2, tokens, 264), np.float32).astype(BF16)
        check(moe, mixture, x, *routed(random, tokens, 4, 32), added)


@pytest.mark.parametrize("name", ["bf16", *EXPERT_FORMATS])
def test_a_row_has_the_same_bits_whatever_the_batch_and_nan_stays_in_its_own(device, random, name):
    moe = Moe(device, is_batch_invariant=True)
    mixture = Mixture(name, 16, 384, 128)
    x = random.standard_normal((2048, 384), np.float32).astype(BF16)
    experts, weights = routed(random, 2048, 4, 16)
    held = to_device(x)

    def run(tokens, start=0):
        rows = slice(start, start + tokens)
        return bits(
            moe.mixture(
                held[rows], Routing(to_device(experts[rows]), to_device(weights[rows])), mixture.weights
            )
        )

    complete = run(2048)
    for tokens in (1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 65, 300):
        assert np.array_equal(run(tokens, 5), complete[5 : 5 + tokens])
    held[9] = to_device(np.full(384, np.nan, BF16))
    harmed = run(2048)
    assert np.array_equal(np.delete(harmed, 9, 0), np.delete(complete, 9, 0))
    assert np.isnan(harmed[9].view(BF16).astype(np.float32)).all()


@pytest.mark.parametrize("name", ["bf16", "fp8_block", "mxfp4_fields"])
def test_the_expert_behind_the_others_is_that_of_every_token(device, moe, random, name):
    mixture = Mixture(name, 17, 384, 256)
    into, down = mixture.weights.gate_up, mixture.weights.down
    weights = ExpertWeights(into[:16], down[:16], shared=(into[16], down[16]))
    assert moe.joins_shared(weights, 32)
    assert not moe.joins_shared(weights, 33)
    assert not moe.joins_shared(ExpertWeights(into[:15], down[:15], shared=(into[16], down[16])), 1)
    assert not Moe(device, is_batch_invariant=True).joins_shared(weights, 1)
    held = [to_device((random.standard_normal((rows, 384)) / 20).astype(BF16)) for rows in (16, 1)]
    for tokens in (1, 7, 9, 31, 32):
        x = random.standard_normal((tokens, 384), np.float32).astype(BF16)
        options = {"shared_gate": held[1], "joins_shared": True}
        routing = moe.route(to_device(x), held[0], RouterSpec(16, 4), **options)
        found = float32(moe.mixture(to_device(x), routing, weights))
        factors = 1 / (1 + np.exp(-cp.asnumpy(routing.shared_logits)))
        chosen = np.append(cp.asnumpy(routing.experts), np.full((tokens, 1), 16), axis=1)
        scales = np.append(cp.asnumpy(routing.weights), factors[:, None], axis=1)
        expected, size = mixture.expected(x, chosen, scales)
        assert (np.abs(found - expected) <= TOLERANCE * (size + np.abs(expected)) + 1e-5).all()


def test_layers_follow_each_other_without_waiting(moe, device, random):
    """Each reads the result before it; all share the lists of pairs and the results of experts."""
    mixtures = [Mixture(name, 16, 256, 128) for name in ("bf16", "int4", "fp8", "bf16")]
    routers = [to_device((random.standard_normal((16, 256)) / 4).astype(BF16)) for _ in mixtures]
    spec = RouterSpec(16, 4)
    for tokens in (1, 40, 700):
        x = to_device(random.standard_normal((tokens, 256), np.float32).astype(BF16))
        results = []
        for repeat in range(6):
            y = x
            for mixture, router in zip(mixtures, routers, strict=True):
                y = moe.mixture(y, moe.route(y, router, spec), mixture.weights, y).copy()
                if repeat == 0:
                    device.synchronize()
            results.append(bits(y))
        assert all(np.array_equal(result, results[0]) for result in results)
        assert np.isfinite(results[0].view(BF16).astype(np.float32)).all()


def test_matrices_that_do_not_fit_are_refused(moe, random):
    mixture, other = Mixture("bf16", 8, 128, 64), Mixture("bf16", 8, 128, 72)
    weights = type(mixture.weights)(mixture.weights.gate_up, other.weights.down)
    x = to_device(random.standard_normal((3, 128)).astype(BF16))
    experts, scales = routed(random, 3, 2, 8)
    with pytest.raises(ShapeError, match="do not fit"):
        moe.mixture(x, Routing(to_device(experts), to_device(scales)), weights)
    uneven = type(mixture.weights)(
        (*mixture.weights.gate_up[:6], *other.weights.gate_up[6:]), mixture.down.held
    )
    with pytest.raises(ShapeError, match="alike"):
        moe.mixture(x, Routing(to_device(experts), to_device(scales)), uneven)
