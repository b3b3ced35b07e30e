"""Routers on the GPU: logits against float64, the choice and its weights against the reference."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.memory.buffers.moe import MAX_SPLIT_TOKENS, RANGE_COLUMNS, logit_stride  # noqa: E402
from wisp_plan.spec.moe import RouterSpec  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device  # noqa: E402
from wisp_runtime.ops.cuda.moe.plan import mma_tile  # noqa: E402
from wisp_runtime.ops.cuda.moe.router import Router  # noqa: E402
from wisp_runtime.ops.cuda.moe.router_weights import RouterWeights  # noqa: E402
from wisp_runtime.ops.cuda.moe.sorting import PairSorter  # noqa: E402
from wisp_runtime.ops.cuda.moe.token_router import TokenRouter  # noqa: E402
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


class Routers:
    """Both ways to route; each result with its logits, and the order of its pairs."""

    def __init__(self, device):
        self._workspace, self.few, self.many = device.workspace, TokenRouter(device), Router(device)
        self._sort = PairSorter(device)

    def __call__(self, x, weights, spec, *, is_few=None, counts=None):
        tokens, tile = len(x), mma_tile(len(x) * spec.chosen, spec.experts)
        is_few = tokens <= MAX_SPLIT_TOKENS if is_few is None else is_few
        if is_few:
            routing, ordered = self.few(x, weights, spec, counts, tile)
        else:
            routing = self.many(x, weights, spec)
            ordered = self._sort(routing.experts, spec.experts, counts, tile)
        ranges = -(-x.shape[1] // RANGE_COLUMNS) if is_few else 1
        stride = logit_stride(spec.experts, has_gate=weights.gate is not None)
        parts = cp.asnumpy(self._workspace.array("moe.logits", (ranges, tokens, stride), np.float32))
        logits = np.zeros((tokens, spec.experts), np.float32)
        for part in parts:
            logits += part[:, : spec.experts]
        return routing, ordered, logits


@pytest.fixture(scope="module")
def router(device):
    return Routers(device)


def on_gpu(weight, bias=None, correction=None, gate=None):
    arrays = (None if array is None else to_device(array) for array in (weight, bias, correction, gate))
    return RouterWeights(*arrays)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("tokens", [1, 7, 9, 32, 64, 65, 300, 2048])
@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("has_gate", [False, True])
def test_each_token_is_routed_as_the_reference_does(router, random, name, tokens, dtype, has_gate):
    spec, columns = SPECS[name]
    x = random.standard_normal((tokens, columns), np.float32).astype(BF16)
    weight, gate = (
        (random.standard_normal((rows, columns), np.float32) * columns**-0.5).astype(dtype)
        for rows in (spec.experts, 1)
    )
    bias = random.standard_normal(spec.experts).astype(BF16) if spec.has_bias else None
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32)
    correction = correction if spec.has_correction_bias else None
    weights = on_gpu(weight, bias, correction, gate if has_gate else None)
    routing, _, logits = router(to_device(x), weights, spec)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.abs(logits - exact).max() < 1e-5 * np.abs(exact).max()
    if has_gate:
        exact = (x.astype(np.float64) @ gate.astype(np.float64).T)[:, 0]
        assert np.abs(cp.asnumpy(routing.shared_logits) - exact).max() < 1e-5 * max(np.abs(exact).max(), 1)
    if bias is not None:
        logits = logits + bias.astype(np.float32)
    experts, factors = choose_experts(logits, spec, correction)
    found = cp.asnumpy(routing.experts)
    is_same = (found == experts).all(1)
    # sigmoid and softmax scores are rounded otherwise: of nearly equal ones another may be chosen
    assert is_same.mean() > (0.99 if spec.scores == "sigmoid" else 0.9999)
    assert np.allclose(cp.asnumpy(routing.weights)[is_same], factors[is_same], rtol=2e-5, atol=1e-7)
    assert all(len(set(row)) == spec.chosen for row in found.tolist())


@pytest.mark.parametrize("is_few", [True, False])
def test_of_equal_scores_the_lower_index_wins_and_nan_stays_in_its_row(router, is_few):
    x = np.ones((60, 64), BF16)
    x[5] = np.nan
    weight = np.zeros((256, 64), BF16)
    weight[[200, 31, 77]] = 1
    routing, *_ = router(to_device(x), on_gpu(weight), RouterSpec(256, 6), is_few=is_few)
    experts, factors = cp.asnumpy(routing.experts), cp.asnumpy(routing.weights)
    others = np.arange(60) != 5
    assert (experts[others] == [31, 77, 200, 0, 1, 2]).all()
    assert np.isfinite(factors[others]).all()
    assert sorted(experts[5]) == list(range(6))


@pytest.mark.parametrize("name", ["qwen3", "qwen3-next", "deepseek"])
def test_a_row_has_the_same_bits_whatever_the_batch(router, random, name):
    spec, columns = SPECS[name]
    x = to_device(random.standard_normal((300, columns), np.float32).astype(BF16))
    weight, gate = (
        (random.standard_normal((rows, columns), np.float32) * columns**-0.5).astype(BF16)
        for rows in (spec.experts, 1)
    )
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32)
    weights = on_gpu(weight, None, correction if spec.has_correction_bias else None, gate)

    def arrays(tokens):
        routing, *_ = router(x[:tokens], weights, spec)
        return [cp.asnumpy(each) for each in (routing.experts, routing.weights, routing.shared_logits)]

    complete = arrays(300)
    for tokens in (1, 7, 8, 9, 64, 65):
        for part, expected in zip(arrays(tokens), complete, strict=True):
            assert np.array_equal(part, expected[:tokens])


@pytest.mark.parametrize("name", SPECS)
def test_few_tokens_are_sorted_and_counted_as_many_are_launch_after_launch(router, random, name):
    spec, columns = SPECS[name]
    weight = (random.standard_normal((spec.experts, columns), np.float32) * columns**-0.5).astype(BF16)
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32)
    bias = random.standard_normal(spec.experts).astype(BF16) if spec.has_bias else None
    weights = on_gpu(weight, bias, correction if spec.has_correction_bias else None)
    counts = cp.zeros((2, 2, spec.experts), np.int64)
    for repeat, tokens in enumerate([1, 2, 8, 9, 17, 31, 33, 64] * 5):
        x = to_device(random.standard_normal((tokens, columns), np.float32).astype(BF16))
        lists = []
        for is_few, own in ((True, counts[0]), (False, counts[1])):
            routing, ordered, _ = router(x, weights, spec, is_few=is_few, counts=own)
            tiles = ordered.tiles[: int(ordered.tile_count[0])]
            found = routing.experts, routing.weights, ordered.positions, ordered.rows, tiles
            lists.append([cp.asnumpy(each) for each in found])
        assert all(np.array_equal(*pair) for pair in zip(*lists, strict=True)), (repeat, tokens)
    assert cp.array_equal(counts[0], counts[1])


def test_arrays_that_do_not_fit_are_refused(router, device_bf16):
    (_, x), (_, weight) = device_bf16((4, 64)), device_bf16((32, 72))
    for is_few in (True, False):
        with pytest.raises(ShapeError, match="the router's weight"):
            router(x, RouterWeights(weight), RouterSpec(32, 4), is_few=is_few)
        with pytest.raises(ShapeError, match="experts"):
            router(x, RouterWeights(weight), RouterSpec(1024, 4), is_few=is_few)
        with pytest.raises(ShapeError, match="sqrtsoftplus"):
            router(x, RouterWeights(weight), RouterSpec(32, 4, "sqrtsoftplus"), is_few=is_few)
        weights = RouterWeights(weight[:, :64].copy(), gate=weight[:2, :64].copy())
        with pytest.raises(ShapeError, match="gate"):
            router(x, weights, RouterSpec(32, 4), is_few=is_few)
