"""Hopper's GEMM of experts in block FP8 on the emulated GPU, against NumPy and the portable kernel."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import test_emulated_mixture as mixtures
from emulated_gpu import EmulatedGpu, HostArray, imported, to_gpu
from emulated_kernel import needs_compiler, tensor_map
from emulated_mixture import BF16, aligned, sort
from emulated_mixture import multiply as multiply_portable
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.ops.cuda.moe.plan import PACKED_WIDE_TOKENS, Tile
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized

pytestmark = needs_compiler
PACKED = PACKED_FORMATS["fp8_block"]
RAGGED = [0, 1, 63, 64, 65, 129, 193, 300]  # tokens of each expert
PLAIN, GATED = 0, 1  # Store of mma_output.cuh


@cache
def wrappers() -> list[ModuleType]:
    """Import the wrappers, which share their classes."""
    with imported("moe.packed_wide_experts", "moe.matrices", "moe.sorting", "weights.quantized") as found:
        return found


def multiply(x, experts, tiles, *, is_gated, has_bias=True, blocks=3, seed=0) -> np.ndarray:
    """Return the result of each position."""
    wide, matrices, sorting, quantized = wrappers()
    (outputs, inputs), memory = experts.shape, to_gpu(experts.matrices)
    permutation = "gate_up_interleaved" if is_gated else "plain"
    storages = (HostArray(row) for row in memory.host)
    held = tuple(
        quantized.QuantizedStorage(row, outputs, inputs, permutation, experts.packed) for row in storages
    )
    positions, gpu = np.arange(len(x), dtype=np.int32), EmulatedGpu(seed, hardware="hopper")
    gpu.sm_count = blocks
    lists = (positions[:, None], positions[:, None], positions, tiles, np.array([len(tiles)], np.int32))
    ordered = sorting.SortedPairs(*map(to_gpu, lists), Tile(PACKED_WIDE_TOKENS, is_wide=True))
    kernel = wide.PackedWideExperts(gpu)
    kernel._map = lambda array, width: tensor_map(array.host, width, 64)
    out = to_gpu(np.full((len(x), outputs // 2 if is_gated else outputs), np.nan, BF16))
    bias = to_gpu(experts.bias) if has_bias else None
    kernel(to_gpu(x), matrices.ExpertMatrices.of(held), bias, ordered, out)
    assert not gpu.buffer("moe.progress").any()  # as it was
    return out.host


def ragged(columns: int, tokens_of: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens in the order of positions, and tiles, of experts with so many tokens."""
    random = np.random.default_rng(seed)
    pairs = random.permutation(np.repeat(np.arange(len(tokens_of), dtype=np.int32), tokens_of))[:, None]
    _, rows, tiles, _ = sort(pairs, len(tokens_of), PACKED_WIDE_TOKENS)
    return random.standard_normal((len(pairs), columns)).astype(BF16)[rows], tiles


def expected(x: np.ndarray, experts, expert: int, *, is_gated: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return results in float64, and the sizes of the terms that float32 sums have."""
    x, matrix = x.astype(np.float64), experts.exact[expert]
    sums = x @ matrix.T + experts.exact_bias[expert]
    size = np.sqrt((x * x) @ (matrix * matrix).T) + np.abs(experts.exact_bias[expert])
    if not is_gated:
        return sums, size
    (gate, up), (gate_size, up_size) = np.split(sums, 2, axis=1), np.split(size, 2, axis=1)
    sigmoid = 1 / (1 + np.exp(np.minimum(-gate, 700)))
    return gate * sigmoid * up, gate_size * np.abs(up) + np.abs(gate * sigmoid) * up_size


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(("outputs", "inputs"), [(208, 384), (128, 128), (336, 200)])
def test_an_expert_multiplies_its_positions_alone(is_gated: bool, outputs: int, inputs: int) -> None:
    permutation = "gate_up_interleaved" if is_gated else "plain"
    experts = mixtures.Experts("fp8_block", len(RAGGED), outputs, inputs, permutation)
    x, tiles = ragged(inputs, RAGGED, outputs)
    assert max(end - first for _, first, end, _ in tiles) == PACKED_WIDE_TOKENS
    x[4] = np.nan  # harms its own result alone
    y = multiply(aligned(x), experts, tiles, is_gated=is_gated, seed=outputs)
    assert np.isnan(y[4].astype(np.float32)).all()
    for expert, first, end, _ in tiles:
        at = [position for position in range(first, end) if position != 4]
        assert mixtures.close(y[at], *expected(x[at], experts, expert, is_gated=is_gated))


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
def test_results_are_as_near_as_the_portable_kernels(is_gated: bool) -> None:
    """Neither rounds a weight: float32 sums apart, both are float64's results, rounded to bf16."""
    permutation = "gate_up_interleaved" if is_gated else "plain"
    experts = mixtures.Experts("fp8_block", 4, 128, 768, permutation)
    x, tiles = ragged(768, [70, 0, 40, 130])
    x = aligned(x)
    y = multiply(x, experts, tiles, is_gated=is_gated)
    counts = np.array(
        [[e, a, b, 0] for e, f, g, _ in tiles for a in range(f, g, 64) for b in [min(a + 64, g)]]
    )
    portable = multiply_portable(
        *(x, experts.matrices, PACKED, experts.shape, experts.bias, GATED if is_gated else PLAIN),
        *((counts.astype(np.int32), len(x)), 64),
        rows=None,
    )
    errors = []
    for result in (y, portable):
        parts = [
            np.abs(result[f:g].astype(np.float64) - expected(x[f:g], experts, e, is_gated=is_gated)[0])
            for e, f, g, _ in tiles
        ]
        errors.append(np.concatenate(parts))
    assert errors[0].mean() <= errors[1].mean() * 1.01
    assert errors[0].max() <= errors[1].max() * 1.1
    assert (y == portable).mean() > 0.98


def test_blocks_of_any_scale_add_up() -> None:
    """A block may have no scale, a tiny one, or one far from its neighbours'; a negative one is one too."""
    outputs, inputs = 128, 896
    experts = mixtures.Experts("fp8_block", 2, outputs, inputs, "plain")
    quantized = quantized_matrix(PACKED, outputs, inputs)
    scales = np.array([0, 1e-6, 0, 3e4, -2, 1e-30, 0.7], np.float32)
    quantized.block_scales[...] = scales * np.random.default_rng(0).uniform(1, 2, (outputs // 8, 1)).repeat(
        8, 0
    )
    experts.matrices = aligned(np.stack([pack_quantized(PACKED, quantized, "plain")] * 2))
    experts.exact = dequantize(PACKED, quantized)[None].astype(np.float64)
    x, tiles = ragged(inputs, [70, 0])
    y = multiply(aligned(x), experts, tiles, is_gated=False, has_bias=False)
    experts.exact_bias[...] = 0
    assert mixtures.close(y, *expected(x, experts, 0, is_gated=False))
    quantized.block_scales[:8, 3] = np.nan
    experts.matrices = aligned(np.stack([pack_quantized(PACKED, quantized, "plain")] * 2))
    harmed = multiply(aligned(x), experts, tiles, is_gated=False, has_bias=False)
    assert np.isnan(harmed[:, :8].astype(np.float32)).all()
    assert np.array_equal(harmed[:, 8:], y[:, 8:])


def test_a_result_is_the_same_bits_at_every_tile_grid_and_order_of_events() -> None:
    experts = mixtures.Experts("fp8_block", 2, 208, 256, "plain")
    x, tiles = ragged(256, [30, 280])
    results = [multiply(aligned(x), experts, tiles, is_gated=False, blocks=3, seed=0)]
    narrow = np.array([[e, a, min(a + 50, g), 0] for e, f, g, _ in tiles for a in range(f, g, 50)], np.int32)
    for lists, blocks, seed in ((tiles, 1, 1), (tiles, 9, 2), (narrow, 4, 3)):
        results.append(multiply(aligned(x), experts, lists, is_gated=False, blocks=blocks, seed=seed))
    assert all(np.array_equal(y.view(np.uint16), results[0].view(np.uint16)) for y in results)
