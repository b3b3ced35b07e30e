"""Hopper's GEMM of experts with many tokens on the emulated GPU, against NumPy and the portable kernel."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_gpu import imported
from emulated_kernel import Emulated, needs_compiler, tensor_map
from emulated_mixture import BF16, CATALOGUE, aligned, kernels_of, sort, source_of

from wisp_runtime.ops.cuda.moe.arguments import ExpertTiles
from wisp_runtime.ops.cuda.moe.plan import WIDE_ROW_TILES, WIDE_TOKENS, wide_entry
from wisp_runtime.ops.reference.packing import pack, permuted_rows

with imported("gemm.launch") as [launch]:
    GemmArguments = launch.GemmArguments

pytestmark = needs_compiler
EXPERTS, INPUTS, STAGES = 4, 136, 3


@cache
def kernels() -> Emulated:
    source = CATALOGUE.choose("experts", "hopper", "bf16")
    return Emulated(source.path, [*CATALOGUE.defines("hopper")])


class Matrices:
    """Matrices and biases of the experts, packed and in float64."""

    def __init__(self, outputs: int, permutation: str) -> None:
        random = np.random.default_rng(outputs)
        matrices = (random.standard_normal((EXPERTS, outputs, INPUTS)) / np.sqrt(INPUTS)).astype(BF16)
        self.packed = aligned(np.stack([pack(each, permutation) for each in matrices]))
        self.exact = matrices.astype(np.float64)
        bias = random.standard_normal((EXPERTS, outputs)).astype(BF16)
        self.bias, self.exact_bias = np.empty_like(bias), bias.astype(np.float64)
        self.bias[:, permuted_rows(outputs, permutation)] = bias


def multiply(x, matrices, tiles, width, *, is_gated, blocks=3, seed=0):
    """Return the result of each position."""
    outputs, row_tiles = matrices.exact.shape[1], WIDE_ROW_TILES
    columns = outputs // 2 if is_gated else outputs
    out = aligned(np.full((len(x), columns), np.nan, BF16))
    gemm = GemmArguments(
        weight=matrices.packed.ctypes.data,
        bias=matrices.bias.ctypes.data,
        out=out.ctypes.data,
        rows=outputs,
        k_tiles=-(-INPUTS // 64),
        tokens=len(x),
        out_columns=columns,
        m_tiles=-(-outputs // (64 * row_tiles)),
        stages=STAGES,
    )
    tiles, count = aligned(tiles), np.array([len(tiles)], np.int32)
    distance = matrices.packed.strides[0] // 2
    lists = ExpertTiles(tiles.ctypes.data, count.ctypes.data, distance)
    kernels().launch(
        wide_entry(width, is_gated),
        [tensor_map(x, width, 64), gemm, lists],
        blocks=blocks,
        threads=(row_tiles + 1) * 128,
        seed=seed,
    )
    return out


@pytest.mark.parametrize("width", WIDE_TOKENS)
@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("outputs", [208, 448])
def test_an_expert_multiplies_its_positions_alone(width: int, is_gated: bool, outputs: int) -> None:
    random = np.random.default_rng(width)
    matrices = Matrices(outputs, "gate_up_interleaved" if is_gated else "plain")
    pairs = np.repeat(np.array([3, 0, 1], np.int32), [width + 5, 9, 40])  # expert 2 has none
    pairs = random.permutation(pairs)[:, None]
    _, rows, tiles, _ = sort(pairs, EXPERTS, width)
    x = random.standard_normal((len(pairs), INPUTS)).astype(BF16)[rows]
    x[4] = np.nan  # harms its own result alone
    y = multiply(aligned(x), matrices, tiles, width, is_gated=is_gated, seed=width)
    assert np.isnan(y[4].astype(np.float32)).all()
    for expert, first, end, _ in tiles:
        at = [position for position in range(first, end) if position != 4]
        sums = x[at].astype(np.float64) @ matrices.exact[expert].T + matrices.exact_bias[expert]
        if is_gated:
            gate, up = np.split(sums, 2, axis=1)
            sums = gate / (1 + np.exp(-gate)) * up
        error = np.abs(y[at].astype(np.float64) - sums)
        assert (error <= np.abs(sums) * 2**-8 + 1e-4).all()


def test_a_result_is_the_same_bits_at_every_tile_grid_and_order_of_events() -> None:
    matrices, random = Matrices(208, "plain"), np.random.default_rng(0)
    pairs = random.integers(0, EXPERTS, (150, 1)).astype(np.int32)
    results = []
    for width, blocks, seed in ((128, 1, 0), (128, 5, 1), (192, 2, 2), (192, 9, 3)):
        _, rows, tiles, _ = sort(pairs, EXPERTS, width)
        x = np.random.default_rng(1).standard_normal((150, INPUTS)).astype(BF16)[rows]
        y = multiply(aligned(x), matrices, tiles, width, is_gated=False, blocks=blocks, seed=seed)
        results.append(y.view(np.uint16))
    assert all(np.array_equal(result, results[0]) for result in results)


def test_tokens_are_gathered_in_the_order_of_positions() -> None:
    x = aligned(np.random.default_rng(0).standard_normal((9, 1048)).astype(BF16))[:, :1032]
    rows = np.random.default_rng(1).integers(0, 9, 22).astype(np.int32)
    out = aligned(np.full((22, 1032), np.nan, BF16))
    kernels_of(source_of("gather_positions")).launch(
        "gather_positions",
        [
            *(ctypes.c_void_p(array.ctypes.data) for array in (x, rows, out)),
            *(ctypes.c_longlong(x.strides[0] // 2), ctypes.c_int32(1032), ctypes.c_int32(22)),
        ],
        blocks=(6, 2, 1),
        threads=128,
        seed=0,
    )
    assert np.array_equal(out, x[rows])
