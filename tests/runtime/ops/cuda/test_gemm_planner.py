"""Tilings of GEMMs: every step is computed once, no block waits for another, and the estimate is short."""

from collections import Counter

import pytest

from wisp_plan.memory.buffers.gemm import BLOCK_N
from wisp_runtime.ops.cuda.gemm.cost_model import estimate_us
from wisp_runtime.ops.cuda.gemm.planner import _candidates, data_parallel_plan, plan
from wisp_runtime.ops.cuda.gemm.tiling import (
    BLOCK_N_OF_192_ROWS,
    GemmPlan,
    GemmShape,
    _tile,
    iter_tiles,
    split_owners,
    stage_bytes,
    stages,
    staging_bytes,
)

H200_SHARED_BYTES = 232448
QKV, OUTPUT, GATE_UP, DOWN, HEAD = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)
SMALL = ((576, 576), (1536, 576), (49152, 576), (896, 896), (9728, 896), (151936, 1024), (8, 72), (72, 8))
TOKENS = (1, 2, 7, 8, 9, 17, 64, 65, 100, 128, 129, 250, 256, 257, 300, 512, 1000, 2051)


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN, HEAD, *SMALL])
@pytest.mark.parametrize("sms", [132, 114, 78, 1])
def test_every_step_of_every_tile_is_computed_once(shape, sms):
    for tokens in TOKENS if shape[0] < 20000 else TOKENS[::5]:
        chosen = plan(GemmShape(*shape, tokens), sms)
        assert 1 <= chosen.grid <= sms
        done: Counter[tuple[int, int]] = Counter()
        for block in range(chosen.grid):
            tiles = list(iter_tiles(chosen, block))
            assert tiles, "a block without work"
            for tile in tiles:
                assert 0 <= tile.k_begin < tile.k_end <= chosen.shape.k_tiles
                done[tile.m_tile, tile.n_tile] += tile.k_end - tile.k_begin
        assert len(done) == chosen.tiles
        assert set(done.values()) == {chosen.shape.k_tiles}


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN, *SMALL])
def test_every_owner_of_a_split_tile_is_counted(shape):
    for tokens in TOKENS:
        chosen = plan(GemmShape(*shape, tokens), 132)
        shared: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for block in range(chosen.ranges * chosen.streams):
            begun, continued = 0, 0
            for tile in iter_tiles(chosen, block):
                if tile.stream_index < 0 or tile.k_end - tile.k_begin == chosen.shape.k_tiles:
                    continue
                begun += tile.k_begin == 0
                continued += tile.k_begin > 0
                key = tile.m_tile, tile.n_tile, tile.stream_index
                shared.setdefault(key, []).append((block // chosen.streams, tile.k_begin))
            assert begun <= 1, "two partial tiles for one place in the workspace"
            assert continued <= 1, "two partial tiles for one place in the workspace"
        assert bool(shared) == chosen.is_split
        for (_, _, stream_index), owners in shared.items():
            first, last = split_owners(chosen, stream_index)
            assert sorted(owner for owner, _ in owners) == list(range(first, last + 1))
            assert [owner for owner, k_begin in owners if k_begin == 0] == [first]


@pytest.mark.parametrize("shape", [QKV, HEAD, DOWN, *SMALL])
def test_numbers_stay_inside_the_kernels_integers(shape):
    for tokens in (*TOKENS, 8192, 131072):
        chosen = plan(GemmShape(*shape, tokens), 132)
        assert chosen.ranges <= max(1, chosen.stream_steps)
        assert (chosen.stream_steps + 1) * max(1, chosen.ranges) < 1 << 31
        assert chosen.tiles + chosen.grid < 1 << 31
        assert (chosen.tiles - chosen.full_tiles) % chosen.streams == 0
        assert chosen.streams == 1 or chosen.streams == chosen.n_tiles == chosen.group


@pytest.mark.parametrize(
    ("width", "row_tiles"),
    [*((width, 2) for width in BLOCK_N), *((width, 3) for width in BLOCK_N_OF_192_ROWS)],
)
def test_the_pipeline_is_deep_and_fits(width, row_tiles):
    depth = stages(width, H200_SHARED_BYTES, row_tiles)
    used = depth * stage_bytes(width, row_tiles) + staging_bytes(width, row_tiles)
    assert depth >= 4
    assert used <= H200_SHARED_BYTES - 1024
    assert depth == 16 or used + stage_bytes(width, row_tiles) > H200_SHARED_BYTES - 1024
    half = stages(width, H200_SHARED_BYTES // 2)
    assert width > 64 or half >= 4
    # the sums that the blocks of a pair exchange lie in the stages
    assert row_tiles * 64 * width // 2 * 4 <= depth * stage_bytes(width, row_tiles)


@pytest.mark.parametrize(
    ("shape", "tokens", "width", "n_tiles", "most_us"),
    [
        # one n-tile, no wider than it must be; as fast as the weights come
        (QKV, 1, 8, 1, 16),
        (OUTPUT, 8, 8, 1, 12.5),
        (GATE_UP, 8, 8, 1, 57.5),
        (DOWN, 8, 8, 1, 31.5),
        (HEAD, 8, 8, 1, 246),
        (OUTPUT, 9, 16, 1, 12.5),
        (QKV, 64, 64, 1, 18),
        # pairs of blocks
        (OUTPUT, 128, 128, 1, 16.5),
        (QKV, 128, 128, 1, 18.5),
        (QKV, 256, 128, 2, 22),
        (QKV, 512, 128, 4, 36),
        (DOWN, 100, 128, 1, 36),
        (OUTPUT, 256, 128, 2, 17),
        (DOWN, 256, 128, 2, 46),
        (GATE_UP, 512, 256, 2, 160),
        (DOWN, 512, 256, 2, 81),
        # ragged: two tiles of 160 waste 20 tokens, not 84 or 212
        (QKV, 300, 160, 2, 26),
        (GATE_UP, 300, 160, 2, 107),
        (DOWN, 300, 160, 2, 55),
        # many: 256
        (GATE_UP, 256, 256, 1, 90),
        (GATE_UP, 2048, 256, 8, 615),
        (DOWN, 2048, 256, 8, 300),
        (OUTPUT, 8192, 256, 32, 355),
        (DOWN, 8192, 256, 32, 1190),
        ((576, 576), 1, 8, 1, 5),
    ],
)
def test_a_plan_suits_its_shape(shape, tokens, width, n_tiles, most_us):
    chosen = plan(GemmShape(*shape, tokens), 132)
    assert (chosen.block_n, chosen.n_tiles) == (width, n_tiles)
    assert estimate_us(chosen) <= most_us


@pytest.mark.parametrize("sms", [132, 131])
@pytest.mark.parametrize(("shape", "tokens"), [(GATE_UP, 2048), (GATE_UP, 7900), (DOWN, 8192), (QKV, 8192)])
def test_many_full_tiles_use_multicast(shape, tokens, sms):
    chosen = plan(GemmShape(*shape, tokens), sms)
    assert (chosen.shares_tokens, chosen.grid % 2, chosen.full_tiles) == (True, 0, chosen.tiles)
    for block in range(0, chosen.grid, 2):
        for left, right in zip(iter_tiles(chosen, block), iter_tiles(chosen, block + 1), strict=True):
            assert (right.m_tile, right.n_tile) == (left.m_tile + 1, left.n_tile)


def test_few_tiles_and_odd_m_tiles_use_no_multicast():
    assert not plan(GemmShape(*DOWN, 2048), 132).shares_tokens
    assert not plan(GemmShape(GATE_UP[0] + 128, GATE_UP[1], 8192), 132).shares_tokens


def test_a_small_matrix_is_not_split():
    assert not plan(GemmShape(576, 576, 8), 132).is_split


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN])
@pytest.mark.parametrize("tokens", [2048, 4096, 8192])
def test_a_last_wave_that_is_nearly_full_is_not_split(shape, tokens):
    chosen = plan(GemmShape(*shape, tokens), 132)
    left = chosen.tiles % 132
    assert left <= 66 or not chosen.is_split


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN, *SMALL])
@pytest.mark.parametrize("sms", [132, 131, 1])
def test_a_pair_shares_a_tile_and_does_nothing_after_it(shape, sms):
    for tokens in TOKENS:
        gemm = GemmShape(*shape, tokens)
        for chosen in (candidate for candidate in _candidates(gemm, sms) if candidate.pairs):
            assert (chosen.ranges, chosen.streams, chosen.stream_steps, chosen.is_split) == (0, 1, 0, False)
            assert chosen.grid % 2 == 0
            assert chosen.block_n >= 64
            assert chosen.full_tiles % chosen.grid == 0
            left, right = Counter(), Counter()
            for block in range(chosen.grid):
                tiles = list(iter_tiles(chosen, block))
                assert len(tiles) == chosen.full_tiles // chosen.grid + (block // 2 < chosen.pairs)
                for tile in tiles[chosen.full_tiles // chosen.grid :]:
                    half = right if block % 2 else left
                    half[tile.m_tile, tile.n_tile, block // 2] += tile.k_end - tile.k_begin
                    assert (tile.k_begin == 0) == (block % 2 == 0)
                for tile in tiles[: chosen.full_tiles // chosen.grid]:
                    assert (tile.k_begin, tile.k_end) == (0, gemm.k_tiles)
            assert left.keys() == right.keys()
            assert len(left) == chosen.pairs
            assert all(left[key] + right[key] == gemm.k_tiles for key in left)
            full = {_tile(chosen, index) for index in range(chosen.full_tiles)}
            assert len(full | {key[:2] for key in left}) == chosen.tiles


def test_blocks_of_a_range_stream_the_same_weights_side_by_side():
    chosen = GemmPlan(
        GemmShape(*QKV, 300), block_n=160, group=2, full_tiles=0, streams=2, ranges=66, grid=132
    )
    for block in range(0, chosen.grid, 2):
        left, right = (
            [(tile.m_tile, tile.k_begin, tile.k_end) for tile in iter_tiles(chosen, block + lane)]
            for lane in (0, 1)
        )
        assert left == right


@pytest.mark.parametrize("tokens", [1, 9, 64, 65, 300, 2048, 8192])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (576, 576)])
def test_a_data_parallel_plan_sums_over_all_of_k_in_one_block(shape, tokens):
    made = data_parallel_plan(GemmShape(*shape, tokens), 132)
    tiles = [tile for block in range(made.grid) for tile in iter_tiles(made, block)]
    assert {(tile.k_begin, tile.k_end) for tile in tiles} == {(0, made.shape.k_tiles)}
    assert len({(tile.m_tile, tile.n_tile) for tile in tiles}) == len(tiles) == made.tiles
