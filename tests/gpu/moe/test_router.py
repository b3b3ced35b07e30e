"""Routers on the GPU: logits against float64, the choice and its weights against the reference."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.spec.moe import RouterSpec  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device  # noqa: E402
from wisp_runtime.ops.cuda.moe.plan import router_grid  # noqa: E402
from wisp_runtime.ops.cuda.moe.router import Router  # noqa: E402
from wisp_runtime.ops.reference.moe import choose_experts  # noqa: E402

SPECS = {
    "qwen3": (RouterSpec(128, 8), 2048),
    "qwen3.6": (RouterSpec(256, 8), 2048),
    "qwen3-next": (RouterSpec(512, 10), 2048),
    "mixtral": (RouterSpec(8, 2), 4096),
    "gpt-oss": (RouterSpec(32, 4, has_bias=True), 2880),
    "glm-4.5": (RouterSpec(128, 8, "sigmoid", has_correction_bias=True), 4096),
    "deepseek": (
        RouterSpec(256, 8, "sigmoid", groups=8, chosen_groups=4, has_correction_bias=True, scale=2.5),
        1032,
    ),
    "one": (RouterSpec(64, 1, normalizes=False), 72),
}


@pytest.fixture(scope="module")
def router(device):
    return Router(device)


def logits_of(device, tokens, spec, columns):
    ranges = router_grid(tokens, spec.experts, columns)[1][2]
    parts = cp.asnumpy(device.workspace.array("moe.logits", (ranges, tokens, spec.experts), np.float32))
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("tokens", [1, 7, 64, 65, 300, 2048])
@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "f32"])
def test_each_token_is_routed_as_the_reference_does(device, router, random, name, tokens, dtype):
    spec, columns = SPECS[name]
    x = random.standard_normal((tokens, columns), np.float32).astype(BF16)
    weight = (random.standard_normal((spec.experts, columns), np.float32) * columns**-0.5).astype(dtype)
    bias = random.standard_normal(spec.experts).astype(BF16) if spec.has_bias else None
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32)
    correction = correction if spec.has_correction_bias else None
    extras = (None if array is None else to_device(array) for array in (bias, correction))
    routing = router(to_device(x), to_device(weight), spec, *extras)
    logits = logits_of(device, tokens, spec, columns)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.abs(logits - exact).max() < 1e-5 * np.abs(exact).max()
    if bias is not None:
        logits = logits + bias.astype(np.float32)
    experts, weights = choose_experts(logits, spec, correction)
    found = cp.asnumpy(routing.experts)
    is_same = (found == experts).all(1)
    # sigmoid and softmax scores are rounded otherwise: of nearly equal ones another may be chosen
    assert is_same.mean() > (0.99 if spec.scores == "sigmoid" else 0.9999)
    assert np.allclose(cp.asnumpy(routing.weights)[is_same], weights[is_same], rtol=2e-5, atol=1e-7)
    assert all(len(set(row)) == spec.chosen for row in found.tolist())


def test_of_equal_scores_the_lower_index_wins_and_nan_stays_in_its_row(router):
    x = np.ones((70, 64), BF16)
    x[5] = np.nan
    weight = np.zeros((256, 64), BF16)
    weight[[200, 31, 77]] = 1
    routing = router(to_device(x), to_device(weight), RouterSpec(256, 6), None, None)
    experts, weights = cp.asnumpy(routing.experts), cp.asnumpy(routing.weights)
    others = np.arange(70) != 5
    assert (experts[others] == [31, 77, 200, 0, 1, 2]).all()
    assert np.isfinite(weights[others]).all()
    assert sorted(experts[5]) == list(range(6))


def test_a_row_has_the_same_bits_whatever_the_batch(router, device_bf16):
    (_, x), (_, weight) = device_bf16((300, 2048)), device_bf16((128, 2048), 0.05)
    spec = RouterSpec(128, 8)
    complete = router(x, weight, spec, None, None)
    experts, weights = cp.asnumpy(complete.experts), cp.asnumpy(complete.weights)
    for tokens in (1, 7, 64, 65):
        part = router(x[:tokens], weight, spec, None, None)
        assert np.array_equal(cp.asnumpy(part.experts), experts[:tokens])
        assert np.array_equal(cp.asnumpy(part.weights), weights[:tokens])


def test_arrays_that_do_not_fit_are_refused(router, device_bf16):
    (_, x), (_, weight) = device_bf16((4, 64)), device_bf16((32, 72))
    with pytest.raises(ShapeError, match="the router's weight"):
        router(x, weight, RouterSpec(32, 4), None, None)
    with pytest.raises(ShapeError, match="experts"):
        router(x, weight, RouterSpec(1024, 4), None, None)
