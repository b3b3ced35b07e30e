"""Tilings of GEMMs with quantized weights: every step once, pipelines and partial sums that fit."""

from collections import Counter

import pytest

from wisp_plan.memory.buffers.gemm import BLOCK_M, split_k
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.ops.cuda.gemm.quantized_tiling import (
    BLOCK_N,
    BLOCK_N_OF_W8A8,
    MAX_TOKEN_STAGES,
    MAX_WEIGHT_STAGES,
    MIN_W8A8_TOKENS,
    estimate_us,
    plan_quantized,
    plan_w8a8,
    slot_bytes,
    stages,
    unsplit_quantized,
)
from wisp_runtime.ops.cuda.gemm.tiling import GemmShape, iter_tiles, staging_bytes

H200_SHARED_BYTES = 232448
FORMATS = tuple(PACKED_FORMATS.values())
FP8, INT4 = PACKED_FORMATS["fp8"], PACKED_FORMATS["int4"]
SHAPES = ((6144, 4096), (28672, 4096), (4096, 14336), (576, 576), (8, 48), (1000, 2048))
TOKENS = (1, 8, 9, 64, 65, 129, 257, 700, 2051)


def planned(sms):
    for packed in (FP8, INT4):
        for shape in SHAPES:
            for tokens in TOKENS:
                gemm = GemmShape(*shape, tokens, packed.tile_columns)
                yield packed, plan_quantized(packed, gemm, sms)
                if packed is FP8 and tokens >= MIN_W8A8_TOKENS:
                    yield packed, plan_w8a8(packed, gemm, sms)


@pytest.mark.parametrize("sms", [132, 78, 1])
def test_every_step_of_every_tile_is_computed_once_and_its_partial_sums_have_a_place(sms):
    for packed, chosen in planned(sms):
        assert 1 <= chosen.grid <= sms
        assert chosen.shape.k_tiles == packed.tiles(chosen.shape.rows, chosen.shape.inputs)[1]
        done: Counter[tuple[int, int]] = Counter()
        for block in range(chosen.grid):
            parts = [
                tile for tile in iter_tiles(chosen, block) if tile.k_end - tile.k_begin < chosen.shape.k_tiles
            ]
            assert sum(tile.k_begin == 0 for tile in parts) <= 1
            assert sum(tile.k_begin > 0 for tile in parts) <= 1
            for tile in iter_tiles(chosen, block):
                done[tile.m_tile, tile.n_tile] += tile.k_end - tile.k_begin
        assert len(done) == chosen.tiles
        assert set(done.values()) == {chosen.shape.k_tiles}
        reserved = split_k(chosen.shape.tokens, sms)[0].shape[0]
        assert not chosen.is_split or chosen.grid * 2 * BLOCK_M * chosen.block_n <= reserved


@pytest.mark.parametrize("packed", FORMATS, ids=lambda packed: packed.name)
@pytest.mark.parametrize(("widths", "is_w8a8"), [(BLOCK_N, False), (BLOCK_N_OF_W8A8, True)])
def test_pipelines_fit_a_block_and_hold_more_than_one_tile(packed, widths, is_w8a8):
    for width in widths:
        made = stages(packed, width, H200_SHARED_BYTES, is_w8a8)
        columns = made.tokens * (128 if is_w8a8 else 64)
        assert 2 <= made.weights <= MAX_WEIGHT_STAGES
        assert columns >= packed.tile_columns
        assert made.tokens <= MAX_TOKEN_STAGES
        assert made.shared_bytes <= H200_SHARED_BYTES - 1024
        token_bytes = width * (132 if is_w8a8 else 128)
        used = made.weights * 2 * slot_bytes(packed) + made.tokens * token_bytes + staging_bytes(width)
        assert used == made.shared_bytes


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_unsplit_plan_sums_over_all_of_k_in_one_block(shape, tokens):
    made = unsplit_quantized(INT4, GemmShape(*shape, tokens, INT4.tile_columns), 132)
    tiles = [tile for block in range(made.grid) for tile in iter_tiles(made, block)]
    assert {(tile.k_begin, tile.k_end) for tile in tiles} == {(0, made.shape.k_tiles)}
    assert len({(tile.m_tile, tile.n_tile) for tile in tiles}) == len(tiles) == made.tiles


def test_e4m3_activations_pay_where_the_tensor_cores_are_the_limit():
    gemm = GemmShape(28672, 4096, 2048, FP8.tile_columns)
    bf16, codes = plan_quantized(FP8, gemm, 132), plan_w8a8(FP8, gemm, 132)
    assert estimate_us(FP8, codes, is_w8a8=True) < 0.85 * estimate_us(FP8, bf16)
