"""A mixture of experts on the emulated GPU, kernel by kernel, against NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_gpu import EmulatedGpu
from emulated_kernel import needs_compiler
from emulated_mixture import BF16, Routed, aligned, combine, multiply, route, sort
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import EXPERT_FORMATS
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.ops.cuda.moe.arguments import PLAIN_STORE, STORES
from wisp_runtime.ops.reference.packing import pack, permuted_rows
from wisp_runtime.ops.reference.quantized_packing import QuantizedMatrix, dequantize, pack_quantized

pytestmark = needs_compiler
SPECS = [
    RouterSpec(128, 8),
    RouterSpec(8, 2, normalizes=False),
    RouterSpec(32, 4, has_bias=True),
    RouterSpec(256, 8, "sigmoid", groups=8, chosen_groups=4, has_correction_bias=True, scale=2.5),
    RouterSpec(512, 10, normalizes=False, scale=0.5),
    RouterSpec(64, 6, "sigmoid", has_correction_bias=True),
]


def chosen(logits: np.ndarray, spec: RouterSpec, bias, correction) -> tuple[np.ndarray, np.ndarray]:
    """Choose in float64, of equal ones the lower index."""
    logits = logits.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
    if spec.scores == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
    values = scores + (0 if correction is None else correction.astype(np.float64))
    if spec.groups > 1:
        grouped = values.reshape(len(values), spec.groups, -1)
        best = np.sort(grouped, axis=2)[:, :, -2:].sum(2)
        kept = np.argsort(-best, axis=1, kind="stable")[:, : spec.chosen_groups]
        masked = np.full_like(grouped, -np.inf)
        np.put_along_axis(masked, kept[..., None], np.take_along_axis(grouped, kept[..., None], 1), 1)
        values = masked.reshape(values.shape)
    experts = np.argsort(-values, axis=1, kind="stable")[:, : spec.chosen]
    weights = np.take_along_axis(scores, experts, 1)
    if spec.normalizes:
        weights /= weights.sum(1, keepdims=True)
    return experts, weights * spec.scale


def in_order(
    experts: np.ndarray, count: int, width: int = 8
) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Return positions, rows and tiles of a stable sort."""
    order = np.argsort(experts.reshape(-1), kind="stable")
    positions = np.empty(order.size, int)
    positions[order] = np.arange(order.size)
    per_expert = np.bincount(experts.reshape(-1), minlength=count)
    tiles = [
        [expert, first, min(end, first + width), 0]
        for expert, end in enumerate(np.cumsum(per_expert))
        for first in range(end - per_expert[expert], end, width)
    ]
    return positions.reshape(experts.shape), order // experts.shape[1], tiles


def check_order(routed: Routed, count: int) -> None:
    positions, rows, tiles = in_order(routed.experts, count)
    assert np.array_equal(routed.order[0], positions)
    assert np.array_equal(routed.order[1], rows)
    assert routed.order[2].tolist() == tiles
    per_expert = np.bincount(routed.experts.reshape(-1), minlength=count)
    assert np.array_equal(routed.counts, [per_expert, per_expert > 0])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.experts}-{spec.chosen}-{spec.scores}")
@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("tokens", [1, 19, 70])
def test_each_token_is_routed_to_its_best_experts(spec: RouterSpec, dtype: np.dtype, tokens: int) -> None:
    random, columns = np.random.default_rng(tokens), 328
    x = random.standard_normal((tokens, columns)).astype(BF16)
    weight = (random.standard_normal((spec.experts, columns)) / 10).astype(dtype)
    gate = (random.standard_normal((1, columns)) / 10).astype(dtype) if spec.experts % 64 else None
    bias = random.standard_normal(spec.experts).astype(BF16) if spec.has_bias else None
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32)
    correction = correction if spec.has_correction_bias else None
    routed = route(x, weight, spec, bias, correction, gate=gate, seed=tokens)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.abs(routed.logits - exact).max() < 4e-6 * np.abs(exact).max()
    expected, expected_weights = chosen(routed.logits, spec, bias, correction)
    assert np.array_equal(routed.experts, expected)
    assert np.allclose(routed.weights, expected_weights, rtol=3e-6, atol=1e-12)
    check_order(routed, spec.experts)
    if gate is not None:
        exact = (x.astype(np.float64) @ gate.astype(np.float64).T)[:, 0]
        assert np.abs(routed.gates - exact).max() < 4e-6 * np.abs(exact).max()


@pytest.mark.parametrize("tokens", [1, 8, 9, 33])
def test_a_gate_makes_one_more_tile_of_rows(tokens: int) -> None:
    random, spec = np.random.default_rng(tokens), RouterSpec(64, 6)
    x = random.standard_normal((tokens, 584)).astype(BF16)
    weight, gate = ((random.standard_normal((rows, 584)) / 10).astype(BF16) for rows in (64, 1))
    gpu = EmulatedGpu(seed=tokens)
    for _ in range(2):  # the counters are as they were
        routed = route(x, weight, spec, gate=gate, gpu=gpu)
        exact = (x.astype(np.float64) @ gate.astype(np.float64).T)[:, 0]
        assert np.abs(routed.gates - exact).max() < 4e-6 * np.abs(exact).max()
        check_order(routed, 64)
    assert gpu.launches == ["route_tokens_4"] * 2


@pytest.mark.parametrize("tokens", [1, 8, 20, 64])
@pytest.mark.parametrize("count", [32, 512])
def test_a_shared_expert_has_a_position_of_every_token_behind_the_others(tokens: int, count: int) -> None:
    random, spec = np.random.default_rng(tokens), RouterSpec(count, 4)
    x = random.standard_normal((tokens, 72)).astype(BF16)
    weight = (random.standard_normal((count, 72)) / 10).astype(BF16)
    routed, alone = route(x, weight, spec, has_shared=True), route(x, weight, spec)
    pairs, number = tokens * 4, len(alone.order[2])
    assert np.array_equal(routed.order[0], alone.order[0])
    assert routed.order[1].tolist() == [*alone.order[1].tolist(), *range(tokens)]
    assert np.array_equal(routed.order[2][:number], alone.order[2])
    firsts = range(pairs, pairs + tokens, 8)
    assert routed.order[2][number:].tolist() == [
        [count, first, min(first + 8, pairs + tokens), 0] for first in firsts
    ]
    assert np.array_equal(routed.counts, alone.counts)


@pytest.mark.parametrize("spec", SPECS[2:5], ids=lambda spec: f"{spec.experts}-{spec.chosen}-{spec.scores}")
def test_a_token_has_the_same_bits_however_many_there_are(spec: RouterSpec) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((70, 584)).astype(BF16)
    weight = random.standard_normal((spec.experts, 584)).astype(np.float32)
    gate = random.standard_normal((1, 584)).astype(np.float32)
    bias = random.standard_normal(spec.experts).astype(BF16) if spec.has_bias else None
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32) if spec.has_correction_bias else None
    many = route(x, weight, spec, bias, correction, gate=gate)
    for tokens, seed in ((1, 1), (3, 2), (64, 3)):
        few = route(x[:tokens], weight, spec, bias, correction, gate=gate, seed=seed)
        for name in ("experts", "weights", "logits", "gates"):
            assert np.array_equal(getattr(many, name)[:tokens], getattr(few, name))


@pytest.mark.parametrize("is_few", [True, False])
def test_of_equal_scores_the_lower_index_wins_and_nan_is_chosen_last(is_few: bool) -> None:
    x = np.ones((3, 8), BF16)
    weight = np.zeros((48, 8), BF16)
    weight[[40, 7, 33]] = 1
    x[1] = np.nan
    routed = route(x, weight, RouterSpec(48, 5), is_few=is_few)
    assert routed.experts[[0, 2]].tolist() == [[7, 33, 40, 0, 1]] * 2
    assert routed.experts[1].tolist() == [0, 1, 2, 3, 4]
    assert np.isfinite(routed.weights[[0, 2]]).all()
    check_order(routed, 48)


@pytest.mark.parametrize(
    ("tokens", "chosen", "count"), [(1, 8, 128), (7, 3, 5), (600, 4, 32), (1030, 2, 300)]
)
@pytest.mark.parametrize("spread", ["random", "one", "last"])
def test_pairs_are_sorted_by_expert_in_the_order_of_tokens(
    tokens: int, chosen: int, count: int, spread: str
) -> None:
    random, width = np.random.default_rng(tokens), 16
    experts = np.argsort(random.random((tokens, count)), axis=1)[:, :chosen].astype(np.int32)
    if spread == "one":
        experts = np.tile(np.arange(chosen, dtype=np.int32), (tokens, 1))
    if spread == "last":
        experts = np.tile(np.arange(count - chosen, count, dtype=np.int32), (tokens, 1))
    positions, rows, tiles, counts = sort(experts, count, width)
    order = np.argsort(experts.reshape(-1), kind="stable")
    assert np.array_equal(rows, order // chosen)
    assert np.array_equal(positions.reshape(-1)[order], np.arange(order.size))
    expected = np.bincount(experts.reshape(-1), minlength=count)
    assert np.array_equal(counts, [expected, expected > 0])
    ends = np.cumsum(expected)
    assert tiles.tolist() == [
        [expert, first, min(end, first + width), 0]
        for expert, end in enumerate(ends)
        for first in range(end - expected[expert], end, width)
    ]


def swish(g: np.ndarray, slope: float = 1) -> np.ndarray:
    """Return ``g`` times the sigmoid of ``slope`` g, by exponentials that overflow for no g."""
    small = np.exp(-np.abs(slope * g))
    return g * np.where(g < 0, small, 1) / (1 + small)


ACTIVATIONS = {
    "silu": lambda g, u: swish(g) * u,
    "clamped_swiglu": lambda g, u: (np.clip(u, -7, 7) + 1) * swish(np.minimum(g, 7), 1.702),
    "relu2": None,
}


class Experts:
    """The matrices of E experts, packed, and in float64."""

    def __init__(self, name: str, count: int, outputs: int, inputs: int, permutation: str) -> None:
        self.packed = None if name == "bf16" else EXPERT_FORMATS[name]
        self.shape, random = (outputs, inputs), np.random.default_rng(outputs)
        packed, exact = [], []
        for expert in range(count):
            if self.packed is None:
                matrix = (random.standard_normal((outputs, inputs)) * 2 / np.sqrt(inputs)).astype(BF16)
                packed.append(pack(matrix, permutation).view(np.uint8))
                exact.append(matrix.astype(np.float64))
            else:
                quantized = quantized_matrix(self.packed, outputs, inputs, seed=expert)
                packed.append(pack_quantized(self.packed, quantized, permutation))
                exact.append(dequantize(self.packed, quantized).astype(np.float64))
        self.matrices, self.exact = aligned(np.stack(packed)), np.stack(exact)
        bias = random.standard_normal((count, outputs)).astype(BF16)
        self.bias, self.exact_bias = np.zeros_like(bias), bias.astype(np.float64)
        self.bias[:, permuted_rows(outputs, permutation)] = bias


def close(result: np.ndarray, expected: np.ndarray, size: np.ndarray) -> bool:
    """Say whether a result is rounded once, after float32 sums of terms of ``size``."""
    error = np.abs(result.astype(np.float64) - expected)
    return bool((error <= np.abs(expected) * 2**-8 + size * 2e-5 + 1e-5).all())


@pytest.mark.parametrize("name", ["bf16", *EXPERT_FORMATS])
@pytest.mark.parametrize("width", [8, 16, 32, 64, 128])
def test_an_expert_multiplies_its_tokens_alone(name: str, width: int) -> None:
    activations = list(ACTIVATIONS)
    activation = activations[(len(name) + width // 8) % 3]
    count, chosen_count, inputs, tokens = 4, 2, 264, 3 * width // 2 + 3
    gated = activation != "relu2"
    permutation = "gate_up_interleaved" if gated else "plain"
    first = Experts(name, count, 160, inputs, permutation)
    random = np.random.default_rng(width)
    x = aligned(random.standard_normal((tokens + 1, inputs)).astype(BF16))
    x[1] = np.nan  # harms its own results alone
    x, table = x[:tokens], np.array([[0, 3], [3, 1], [3, 0]], np.int32)  # expert 2 has no tokens
    experts = table[np.arange(tokens) % 3]
    positions, rows, tiles, _ = sort(experts, count, width)
    lists = tiles, positions.size
    y = multiply(
        x, first.matrices, first.packed, first.shape, first.bias, STORES[activation], lists, width, rows=rows
    )
    assert np.isnan(y[positions[1]].astype(np.float32)).all()
    for token in (0, 2, tokens - 1):
        for k in range(chosen_count):
            expert, row = experts[token, k], x[token].astype(np.float64)
            sums = first.exact[expert] @ row + first.exact_bias[expert]
            size = np.abs(first.exact[expert]) @ np.abs(row)
            if gated:
                gate, up = np.split(sums, 2)
                expected, size = ACTIVATIONS[activation](gate, up), size.max() * (1 + np.abs(up))
            else:
                expected, size = np.maximum(sums, 0) ** 2, size * (1 + np.abs(sums))
            assert close(y[positions[token, k]], expected, size)


@pytest.mark.parametrize("name", ["bf16", "int4", "fp8_block", "mxfp4_fields"])
def test_a_result_is_the_same_bits_at_every_tile_and_order_of_events(name: str) -> None:
    experts = Experts(name, 3, 136, 264, "plain")
    x = aligned(np.random.default_rng(0).standard_normal((7, 264)).astype(BF16))
    pairs = np.array([[0], [2], [0], [0], [2], [2], [0]], np.int32)
    results = []
    for width, seed in ((8, 0), (8, 1), (16, 2), (32, 3), (64, 4), (128, 5)):
        _, rows, tiles, _ = sort(pairs, 3, width, seed=seed)
        gemm = experts.matrices, experts.packed, experts.shape, None, PLAIN_STORE
        results.append(multiply(x, *gemm, (tiles, 7), width, rows=rows, seed=seed).view(np.uint16))
    assert all(np.array_equal(result, results[0]) for result in results)


def test_every_code_of_mxfp4_times_every_scale_is_exact() -> None:
    """A token with a single one has the weights of a column; scales of rows are of all sizes there may be."""
    packed, exponents, columns = EXPERT_FORMATS["mxfp4_fields"], np.arange(27), 27 * 32
    codes = ((np.arange(80)[:, None] + np.arange(columns)) % 16).astype(np.uint8)
    rows = np.ldexp(np.float32(1), np.linspace(-140, 114, 80).astype(int))
    matrix = QuantizedMatrix(codes, rows, np.tile(exponents, (80, 1)).astype(np.uint8))
    tiles = aligned(np.array([[0, first, first + 96, 0] for first in range(0, columns, 96)], np.int32))
    stored = aligned(pack_quantized(packed, matrix)[None])
    x = aligned(np.eye(columns, dtype=np.float32).astype(BF16))
    y = multiply(x, stored, packed, codes.shape, None, PLAIN_STORE, (tiles, columns), 128, rows=None)
    with np.errstate(over="ignore"):  # of both: the largest scales of rows make infinities
        expected = dequantize(packed, matrix)
    assert np.array_equal(y.T.astype(np.float32), expected.astype(BF16).astype(np.float32))


def experts_results(
    random, tokens: int, chosen_count: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return results of experts, their positions and their weights."""
    y = random.standard_normal((tokens * chosen_count, columns)).astype(BF16)
    positions = random.permutation(tokens * chosen_count).astype(np.int32).reshape(tokens, chosen_count)
    return y, positions, random.random((tokens, chosen_count)).astype(np.float32)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("has_gate", [False, True])
@pytest.mark.parametrize("chosen_count", [3, 10])
def test_results_are_weighted_in_order_and_added(adds: bool, has_gate: bool, chosen_count: int) -> None:
    random = np.random.default_rng(3)
    tokens, columns = 5, 1032
    y, positions, weights = experts_results(random, tokens, chosen_count, columns)
    added = random.standard_normal((tokens, columns)).astype(BF16) if adds else None
    gates = random.standard_normal(tokens).astype(np.float32) if has_gate else None
    expected = (weights[..., None].astype(np.float64) * y[positions].astype(np.float64)).sum(1)
    if added is not None:
        factor = 1 if gates is None else 1 / (1 + np.exp(-gates.astype(np.float64)))[:, None]
        expected += factor * added.astype(np.float64)
    found = combine(y, positions, weights, added, gates)
    assert close(found, expected, np.full_like(expected, chosen_count))


@pytest.mark.parametrize("columns", [264, 4104, 8200])
@pytest.mark.parametrize("is_narrowed", [False, True])
def test_a_sum_that_a_norm_adds_up_is_the_same_bits(columns: int, is_narrowed: bool) -> None:
    random = np.random.default_rng(columns)
    results = experts_results(random, 3, 8, columns)
    added = random.standard_normal((3, columns)).astype(BF16)
    gates = random.standard_normal(3).astype(np.float32)
    residual = random.standard_normal((5 if is_narrowed else 3, columns)).astype(np.float32)
    weight = random.standard_normal(columns).astype(BF16)
    rows = np.array([4, 0, 1]) if is_narrowed else None
    expected = residual.copy()
    expected[slice(None) if rows is None else rows] += combine(*results, added, gates).astype(np.float32)
    normed = combine(*results, added, gates, norm=(residual, weight, rows, is_narrowed))
    assert np.array_equal(residual, expected)
    picked = expected[slice(None) if rows is None else rows].astype(np.float64)
    scaled = picked / np.sqrt((picked**2).mean(1, keepdims=True) + 1e-6)
    exact = scaled * (weight.astype(np.float64) + is_narrowed)
    assert (np.abs(normed.astype(np.float64) - exact) <= np.abs(exact) * 2**-8 + 1e-6).all()
