"""A mixture of experts on the emulated GPU, kernel by kernel, against NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import needs_compiler
from emulated_mixture import BF16, aligned, combine, multiply, route, sort
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.ops.cuda.moe.arguments import PLAIN_STORE, STORES
from wisp_runtime.ops.reference.packing import pack, permuted_rows
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized

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


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.experts}-{spec.chosen}-{spec.scores}")
@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_each_token_is_routed_to_its_best_experts(spec: RouterSpec, dtype: np.dtype, tokens: int) -> None:
    random, columns = np.random.default_rng(tokens), 328
    x = aligned(random.standard_normal((tokens, columns)).astype(BF16))
    weight = aligned((random.standard_normal((spec.experts, columns)) / 10).astype(dtype))
    bias = random.standard_normal(spec.experts).astype(BF16) if spec.has_bias else None
    correction = random.uniform(0, 0.2, spec.experts).astype(np.float32)
    correction = correction if spec.has_correction_bias else None
    experts, weights, logits = route(x, weight, spec, bias, correction, seed=tokens)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.abs(logits - exact).max() < 4e-6 * np.abs(exact).max()
    expected, expected_weights = chosen(logits, spec, bias, correction)
    assert np.array_equal(experts, expected)
    assert np.allclose(weights, expected_weights, rtol=3e-6, atol=1e-12)


def test_the_logits_of_a_token_are_the_same_bits_however_many_there_are() -> None:
    random = np.random.default_rng(0)
    x = aligned(random.standard_normal((70, 584)).astype(BF16))
    weight = aligned(random.standard_normal((40, 584)).astype(np.float32))
    spec = RouterSpec(40, 3)
    many, few = route(x, weight, spec), route(x[:3], weight, spec)
    assert all(np.array_equal(a[:3], b) for a, b in zip(many, few, strict=True))


def test_of_equal_scores_the_lower_index_wins_and_nan_is_chosen_last() -> None:
    x = aligned(np.ones((3, 8), BF16))
    weight = np.zeros((48, 8), BF16)
    weight[[40, 7, 33]] = 1
    x[1] = np.nan
    experts, weights, _ = route(x, aligned(weight), RouterSpec(48, 5))
    assert experts[[0, 2]].tolist() == [[7, 33, 40, 0, 1]] * 2
    assert experts[1].tolist() == [0, 1, 2, 3, 4]
    assert np.isfinite(weights[[0, 2]]).all()


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


ACTIVATIONS = {
    "silu": lambda g, u: g / (1 + np.exp(-g)) * u,
    "clamped_swiglu": lambda g, u: (
        (np.clip(u, -7, 7) + 1) * np.minimum(g, 7) / (1 + np.exp(-1.702 * np.minimum(g, 7)))
    ),
    "relu2": None,
}


class Experts:
    """The matrices of E experts, packed, and in float64."""

    def __init__(self, name: str, count: int, outputs: int, inputs: int, permutation: str) -> None:
        self.packed = None if name == "bf16" else PACKED_FORMATS[name]
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


@pytest.mark.parametrize("name", ["bf16", *PACKED_FORMATS])
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


@pytest.mark.parametrize("name", ["bf16", "int4", "fp8_block", "mxfp4"])
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


@pytest.mark.parametrize("adds", [False, True])
def test_results_are_weighted_in_order_and_added(adds: bool) -> None:
    random = np.random.default_rng(3)
    tokens, chosen_count, columns = 5, 3, 1032
    y = random.standard_normal((tokens * chosen_count, columns)).astype(BF16)
    positions = random.permutation(tokens * chosen_count).astype(np.int32).reshape(tokens, chosen_count)
    weights = random.random((tokens, chosen_count)).astype(np.float32)
    added = random.standard_normal((tokens, columns)).astype(BF16) if adds else None
    expected = (weights[..., None].astype(np.float64) * y[positions].astype(np.float64)).sum(1)
    expected += 0 if added is None else added.astype(np.float64)
    assert close(combine(y, positions, weights, added), expected, np.ones_like(expected))
