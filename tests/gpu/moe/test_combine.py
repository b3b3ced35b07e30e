"""Weighted sums of experts' results on the GPU, alone and with the norm behind them."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.norms import Norms  # noqa: E402
from wisp_runtime.ops.cuda.moe.combination import Combination  # noqa: E402
from wisp_runtime.ops.protocol.moe import ExpertResults, Routing  # noqa: E402


def results_of(random, tokens, chosen, columns, *, adds=True, has_gate=True):
    """Results, and what they add up to in float64, with the size of the terms."""
    y = random.standard_normal((tokens * chosen, columns), np.float32).astype(BF16)
    positions = random.permutation(tokens * chosen).astype(np.int32).reshape(tokens, chosen)
    weights = random.random((tokens, chosen), np.float32)
    added = random.standard_normal((tokens, columns), np.float32).astype(BF16)
    gates = (random.standard_normal(tokens) * 4).astype(np.float32)
    terms = weights[..., None].astype(np.float64) * y[positions].astype(np.float64)
    if adds:
        factor = 1 / (1 + np.exp(-gates.astype(np.float64)))[:, None] if has_gate else 1
        terms = np.concatenate([terms, (factor * added.astype(np.float64))[:, None]], axis=1)
    routing = Routing(
        to_device(positions), to_device(weights), to_device(gates) if adds and has_gate else None
    )
    held = to_device(y), to_device(positions), routing, to_device(added) if adds else None
    return ExpertResults(*held), terms.sum(1), np.abs(terms).sum(1)


@pytest.mark.parametrize("tokens", [1, 7, 300])
@pytest.mark.parametrize(("chosen", "columns"), [(1, 8), (4, 2880), (8, 2048), (10, 1032), (32, 264)])
@pytest.mark.parametrize(("adds", "has_gate"), [(False, False), (True, False), (True, True)])
def test_results_are_weighted_added_and_rounded_once(device, random, tokens, chosen, columns, adds, has_gate):
    results, expected, size = results_of(random, tokens, chosen, columns, adds=adds, has_gate=has_gate)
    found = to_host(Combination(device)(results)).astype(np.float64)
    assert (np.abs(found - expected) <= np.abs(expected) * 2**-8 * 1.01 + size * 1e-5).all()


@pytest.mark.parametrize("tokens", [1, 5, 64, 300])
@pytest.mark.parametrize(
    ("chosen", "columns"), [(4, 2880), (8, 2048), (8, 4096), (3, 4104), (6, 7168), (2, 8200)]
)
@pytest.mark.parametrize("is_narrowed", [False, True])
def test_the_norm_behind_is_the_same_bits_in_one_launch(device, random, tokens, chosen, columns, is_narrowed):
    results, *_ = results_of(random, tokens, chosen, columns)
    residual = random.standard_normal((tokens + 3 * is_narrowed, columns), np.float32)
    rows = to_device(random.permutation(len(residual))[:tokens]) if is_narrowed else None
    weight = to_device(random.standard_normal(columns, np.float32).astype(BF16))
    apart, fused = to_device(residual), to_device(residual)
    options = {"eps": 1e-6, "rows": rows, "is_zero_centred": is_narrowed}
    expected = Norms(device).add_rmsnorm(
        Combination(device)(results), apart, weight, out_name="test.apart", **options
    )
    found = Combination(device).add_rmsnorm(results, fused, weight, out_name="test.fused", **options)
    assert cp.array_equal(apart, fused)
    assert cp.array_equal(expected.view(np.uint16), found.view(np.uint16))


def test_a_residual_of_other_rows_is_refused(device, random):
    results, *_ = results_of(random, 3, 2, 64)
    weight = to_device(np.ones(64, BF16))
    residual = to_device(np.ones((4, 64), np.float32))
    with pytest.raises(ShapeError, match="residual"):
        Combination(device).add_rmsnorm(results, residual, weight, eps=1e-6, out_name="test.fused")
