"""Router and experts on the CPU against their formulas, row by row; a row has the same bits in any batch."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from wisp_plan.memory.buffers.cpu import MAX_EXPERT_ROWS
from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.spec.moe import RouterSpec
from wisp_plan.spec.weight import WeightSpec
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.moe import ExpertWeights, Routing
from wisp_runtime.ops.protocol.weights.upload import CompactRows, WeightDestination

OPS, THREADED = CpuOps(threads=1), CpuOps(threads=2)
E, K, D, F = 16, 4, 48, 40


def softmax(x):
    exponentials = np.exp(x - x.max())
    return exponentials / exponentials.sum()


def of_qwen(logits, _correction):
    probabilities = softmax(logits)
    chosen = np.argsort(-probabilities, kind="stable")[:K]
    return chosen, probabilities[chosen] / probabilities[chosen].sum()


def of_qwen_unnormalised(logits, _correction):
    chosen = np.argsort(-logits, kind="stable")[:K]
    return chosen, softmax(logits)[chosen]


def of_gpt_oss(logits, _correction):
    chosen = np.argsort(-logits, kind="stable")[:K]
    return chosen, softmax(logits[chosen])


def of_deepseek(logits, correction, groups=1, chosen_groups=1, scale=1.0):
    scores = 1 / (1 + np.exp(-logits))
    corrected = (scores + correction).reshape(groups, -1)
    sums = np.sort(corrected, axis=1)[:, -2:].sum(axis=1)
    allowed = np.argsort(-sums, kind="stable")[:chosen_groups]
    masked = np.full_like(corrected, -np.inf)
    masked[allowed] = corrected[allowed]
    chosen = np.argsort(-masked.reshape(-1), kind="stable")[:K]
    return chosen, scale * scores[chosen] / (scores[chosen].sum() + 1e-20)


def of_mistral4(logits, _correction):
    probabilities = softmax(logits).reshape(4, -1)
    sums = np.sort(probabilities, axis=1)[:, -2:].sum(axis=1)
    allowed, masked = np.argsort(-sums, kind="stable")[:2], np.zeros_like(probabilities)
    masked[allowed] = probabilities[allowed]
    chosen = np.argsort(-masked.reshape(-1), kind="stable")[:K]
    weights = probabilities.reshape(-1)[chosen]
    return chosen, 2.0 * weights / weights.sum()


def of_cohere(logits, _correction):
    chosen = np.argsort(-logits, kind="stable")[:K]
    return chosen, 1 / (1 + np.exp(-logits[chosen]))


SOFTMAX, SIGMOID = RouterSpec(E, K), RouterSpec(E, K, "sigmoid")
ROUTERS = {
    "qwen3_moe, mixtral": (SOFTMAX, of_qwen),
    "qwen3_moe without norm_topk_prob": (replace(SOFTMAX, normalizes=False), of_qwen_unnormalised),
    "gpt_oss": (replace(SOFTMAX, has_bias=True), of_gpt_oss),
    "glm4_moe": (
        replace(SIGMOID, has_correction_bias=True, scale=2.5),
        lambda logits, correction: of_deepseek(logits, correction, scale=2.5),
    ),
    "deepseek_v3": (
        replace(SIGMOID, has_correction_bias=True, groups=4, chosen_groups=2, scale=2.5),
        lambda logits, correction: of_deepseek(logits, correction, 4, 2, 2.5),
    ),
    "minimax_m2": (replace(SIGMOID, has_correction_bias=True), of_deepseek),
    "mistral4": (replace(SOFTMAX, groups=4, chosen_groups=2, scale=2.0), of_mistral4),
    "cohere2_moe": (replace(SIGMOID, normalizes=False), of_cohere),
}


def arguments(spec, rows, seed=1):
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, D), np.float32)
    weight = random.standard_normal((E, D), np.float32) / np.float32(7)
    named = {}
    if spec.has_bias:
        named["bias"] = random.standard_normal(E, np.float32)
    if spec.has_correction_bias:
        named["correction"] = random.standard_normal(E, np.float32) * np.float32(0.3)
    return x, weight, named


@pytest.mark.parametrize("rows", [0, 1, 7, 130])
@pytest.mark.parametrize("family", ROUTERS)
def test_a_router_chooses_and_weighs_as_its_family_s_formula(family, rows):
    spec, formula = ROUTERS[family]
    x, weight, named = arguments(spec, rows)
    routing = OPS.route(x, weight, spec, **named)
    assert (routing.experts.dtype, routing.weights.dtype) == (np.int32, np.float32)
    logits = x.astype(np.float64) @ weight.T.astype(np.float64) + named.get("bias", 0)
    for row in range(rows):
        experts, weights = formula(logits[row], named.get("correction"))
        assert routing.experts[row].tolist() == experts.tolist()
        np.testing.assert_allclose(routing.weights[row], weights, rtol=2e-5)


@pytest.mark.parametrize("family", ROUTERS)
def test_of_equal_scores_the_lower_expert_is_chosen(family):
    spec, _ = ROUTERS[family]
    _, weight, named = arguments(spec, 1)
    same = {name: np.full(E, np.float32(0.25)) for name in named}
    routing = OPS.route(np.zeros((3, D), np.float32), weight, spec, **same)
    assert (routing.experts == np.arange(K)).all()
    equal = np.float32(spec.scale) * (0.25 if spec.normalizes else 1 / E if spec.scores == "softmax" else 0.5)
    np.testing.assert_allclose(routing.weights, equal, rtol=1e-6)


def test_a_correction_decides_the_choice_and_never_the_weights():
    spec = replace(SIGMOID, has_correction_bias=True, normalizes=False)
    x, weight, _ = arguments(spec, 5)
    correction = np.where(np.arange(E) >= E - K, np.float32(10), np.float32(0))
    routing = OPS.route(x, weight, spec, correction=correction)
    assert (np.sort(routing.experts) == np.arange(E - K, E)).all()
    assert (routing.weights < 1).all()


def test_scores_of_an_unknown_name_are_refused():
    x, weight, _ = arguments(SOFTMAX, 5)
    with pytest.raises(ShapeError, match="'sqrtsoftplus', must be one of softmax, sigmoid"):
        OPS.route(x, weight, replace(SOFTMAX, scores="sqrtsoftplus"))


def matrices(random, outputs, inputs, code=None):
    """E random matrices of the device, and what they mean."""
    layout = CompactFormat(code, 8, False) if code else None
    spec = WeightSpec("w", (E, outputs, inputs), (), "projection", compact=layout)
    held = OPS.weight(spec, OPS.weight_arena(OPS.weight_bytes(spec)))
    meant = random.standard_normal((E, outputs, inputs), np.float32)
    for expert, matrix in enumerate(held):
        if layout is None:
            OPS.store_rows(matrix, 0, meant[expert])
            continue
        codes = random.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        scales = (random.random((outputs, inputs // 8)) / 64).astype(np.float32)
        meant[expert] = codes * np.repeat(scales, 8, axis=1)
        rows = CompactRows(codes, scales, None)
        OPS.store(WeightDestination(matrix, "plain", 0, (outputs, inputs), "quantized"), rows)
    return held, meant


def experts_of(activation="silu", has_bias=False, code=None):
    random = np.random.default_rng(3)
    outputs = F if activation == "relu2" else 2 * F
    (gate_up, into), (down, out) = matrices(random, outputs, D, code), matrices(random, D, F, code)
    biases = [random.standard_normal((E, size), np.float32) if has_bias else None for size in (outputs, D)]
    return ExpertWeights(gate_up, down, *biases, activation), into, out


def activated(inner, activation):
    inner = inner.astype(np.float64)
    if activation == "relu2":
        return np.maximum(inner, 0) ** 2
    gate, up = np.split(inner, 2, axis=-1)
    if activation == "silu":
        return gate / (1 + np.exp(-gate)) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return (up + 1) * gate / (1 + np.exp(-1.702 * gate))


@pytest.mark.parametrize("ops", [OPS, THREADED], ids=["one thread", "two threads"])
@pytest.mark.parametrize(
    ("activation", "has_bias", "code"),
    [
        ("silu", False, None),
        ("silu", False, "int8"),
        ("clamped_swiglu", True, None),
        ("relu2", False, None),
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 9, 200])
def test_a_mixture_is_the_weighted_sum_of_its_experts(ops, activation, has_bias, code, rows):
    experts, into, out = experts_of(activation, has_bias, code)
    x, weight, _ = arguments(SOFTMAX, rows)
    routing = ops.route(x, weight, SOFTMAX)
    added = np.random.default_rng(5).standard_normal((rows, D), np.float32)
    expected = added.astype(np.float64)
    for row, (chosen, weights) in enumerate(zip(routing.experts, routing.weights, strict=True)):
        for expert, factor in zip(chosen, weights, strict=True):
            inner = into[expert] @ x[row] + (experts.gate_up_bias[expert] if has_bias else 0)
            result = out[expert] @ activated(inner, activation)
            expected[row] += factor * (result + (experts.down_bias[expert] if has_bias else 0))
    scale = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(ops.mixture(x, routing, experts, added), expected, atol=1e-5 * scale)


@pytest.mark.parametrize("code", [None, "int8"])
@pytest.mark.parametrize("family", ["qwen3_moe, mixtral", "deepseek_v3"])
def test_a_row_s_bits_depend_on_no_other_row(family, code):
    spec, _ = ROUTERS[family]
    experts, *_ = experts_of(code=code)
    x, weight, named = arguments(spec, 150)
    together = OPS.route(x, weight, spec, **named)
    mixed = OPS.mixture(x, together, experts)
    for rows in ([0], [149], [3, 77, 5], list(range(31, 64)), list(range(149, -1, -1))):
        alone = THREADED.route(x[rows], weight, spec, **named)
        assert (alone.experts == together.experts[rows]).all()
        assert (alone.weights.view(np.uint32) == together.weights[rows].view(np.uint32)).all()
        part = THREADED.mixture(x[rows], alone, experts)
        assert (part.view(np.uint32) == mixed[rows].view(np.uint32)).all()


def test_an_expert_with_more_tokens_than_are_computed_at_once(monkeypatch):
    experts, *_ = experts_of()
    x, weight, _ = arguments(SOFTMAX, 60)
    routing = OPS.route(x, weight, SOFTMAX)
    at_once = OPS.mixture(x, routing, experts)
    monkeypatch.setattr("wisp_runtime.ops.cpu.mixture.MAX_EXPERT_ROWS", 5)
    assert (OPS.mixture(x, routing, experts) == at_once).all()


@pytest.mark.parametrize("spread", [False, True], ids=["one expert", "all experts"])
def test_a_mixture_takes_no_more_memory_than_the_ledger_counts(spread):
    rows, wide, inner = 3000, 256, 64
    spec = WeightSpec("w", (E, 2 * inner, wide), (), "projection")
    gate_up = OPS.weight(spec, OPS.weight_arena(OPS.weight_bytes(spec)))
    spec = replace(spec, shape=(E, wide, inner))
    down = OPS.weight(spec, OPS.weight_arena(OPS.weight_bytes(spec)))
    experts = np.argsort(np.random.default_rng(1).random((rows, E)), axis=1)[:, :K].astype(np.int32)
    routing = Routing(
        experts if spread else np.tile(np.arange(K, dtype=np.int32), (rows, 1)),
        np.ones((rows, K), np.float32),
    )
    x = np.ones((rows, wide), np.float32)
    OPS.mixture(x, routing, ExpertWeights(gate_up, down))
    tracemalloc.start()
    OPS.mixture(x, routing, ExpertWeights(gate_up, down))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * (rows * (6 * E + wide) + MAX_EXPERT_ROWS * 6 * (wide + inner))


def test_counters_add_up_tokens_and_calls_of_each_expert():
    counts = OPS.expert_counts(3, E)
    x, weight, _ = arguments(SOFTMAX, 21)
    seen = np.zeros((2, E), int)
    for rows in (x, x[:1], x[3:9]):
        experts = OPS.route(rows, weight, SOFTMAX, counts=counts[1]).experts
        tokens = [(experts == expert).sum() for expert in range(E)]
        seen += [tokens, np.minimum(tokens, 1)]
    assert (counts[1] == seen).all()
    assert not counts[[0, 2]].any()


def test_a_shared_expert_s_result_is_scaled_by_the_sigmoid_of_its_logit():
    experts, *_ = experts_of()
    x, weight, _ = arguments(SOFTMAX, 3)
    x /= 100
    gate = np.random.default_rng(9).standard_normal((1, D), np.float32)
    routing = OPS.route(x, weight, SOFTMAX, shared_gate=gate)
    np.testing.assert_allclose(routing.shared_logits, (x.astype(np.float64) @ gate[0]), rtol=2e-5)
    routing = replace(routing, shared_logits=np.array([0, -200, 200], np.float32))
    alone = OPS.mixture(x, replace(routing, shared_logits=None), experts)
    mixed = OPS.mixture(x, routing, experts, np.ones_like(x), leaves_sum=True)
    found = OPS.combined(mixed) - alone
    np.testing.assert_allclose(found, np.broadcast_to([[0.5], [0], [1]], x.shape), atol=2e-6)


ROUTING = Routing(np.zeros((2, K), np.int32), np.zeros((2, K), np.float32))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, _w: OPS.route(x, np.zeros((E, D + 1), np.float32), SOFTMAX), "weight is"),
        (lambda x, w: OPS.route(x, w, replace(SOFTMAX, has_bias=True)), "bias is missing"),
        (lambda x, w: OPS.route(x, w, SOFTMAX, correction=np.zeros(E, np.float32)), "correction is there"),
        (lambda x, w: OPS.route(x, w, SOFTMAX, counts=np.zeros((2, 3), np.int64)), "counts is"),
        (lambda x, _w: OPS.mixture(x[:1], ROUTING, experts_of()[0]), "weights is"),
        (
            lambda x, _w: OPS.mixture(x, replace(ROUTING, experts=ROUTING.experts + E), experts_of()[0]),
            "experts has values",
        ),
        (lambda x, _w: OPS.mixture(x[:, 1:], ROUTING, experts_of()[0]), "x is"),
        (lambda x, _w: OPS.mixture(x, ROUTING, experts_of()[0], x[:1]), "added is"),
        (
            lambda x, _w: OPS.mixture(x, ROUTING, replace(weights := experts_of()[0], down=weights.down[1:])),
            "16 experts have gate and up, 15 have down",
        ),
        (lambda x, w: OPS.route(x, w, SOFTMAX, shared_gate=x), "shared_gate is"),
        (
            lambda x, _w: OPS.mixture(x, replace(ROUTING, shared_logits=x), experts_of()[0], x),
            "shared_logits is",
        ),
    ],
)
def test_arrays_of_other_shapes_are_refused(call, says):
    x, weight, _ = arguments(SOFTMAX, 2)
    with pytest.raises(ShapeError, match=says):
        call(x, weight)
