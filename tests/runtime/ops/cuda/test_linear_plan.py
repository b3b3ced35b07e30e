"""How matrix products are cut for the GPU: everything once, nobody waits, and not too long."""

from collections import Counter

import pytest

from wisp_plan.memory.buffers.gemm import BLOCK_N
from wisp_runtime.ops.cuda.gemm.linear_plan import (
    TALL_TOKENS,
    Plan,
    Work,
    _candidates,
    _tile,
    estimate_us,
    plan,
    sharers,
    stage_bytes,
    stages,
    staging_bytes,
    walk,
    whole_plan,
)

H200_SHARED_BYTES = 232448
QKV, OUTPUT, GATE_UP, DOWN, HEAD = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)
SMALL = ((576, 576), (1536, 576), (49152, 576), (896, 896), (9728, 896), (151936, 1024), (8, 72), (72, 8))
TOKENS = (1, 2, 7, 8, 9, 17, 64, 65, 100, 128, 129, 250, 256, 257, 300, 512, 1000, 2051)


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN, HEAD, *SMALL])
@pytest.mark.parametrize("sms", [132, 114, 78, 1])
def test_every_step_of_every_tile_is_computed_once(shape, sms):
    for tokens in TOKENS if shape[0] < 20000 else TOKENS[::5]:
        one = plan(Work(*shape, tokens), sms)
        assert 1 <= one.grid <= sms
        done: Counter[tuple[int, int]] = Counter()
        for block in range(one.grid):
            pieces = list(walk(one, block))
            assert pieces, "a block without work"
            for piece in pieces:
                assert 0 <= piece.k_begin < piece.k_end <= one.work.k_tiles
                done[piece.unit, piece.token_tile] += piece.k_end - piece.k_begin
        assert len(done) == one.tiles
        assert set(done.values()) == {one.work.k_tiles}


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN, *SMALL])
def test_who_shares_a_cut_tile_knows_it(shape):
    for tokens in TOKENS:
        one = plan(Work(*shape, tokens), 132)
        shared: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for block in range(one.ranges * one.lanes):
            begun, gone_on = 0, 0
            for piece in walk(one, block):
                if piece.place < 0 or piece.k_end - piece.k_begin == one.work.k_tiles:
                    continue
                begun += piece.k_begin == 0
                gone_on += piece.k_begin > 0
                key = piece.unit, piece.token_tile, piece.place
                shared.setdefault(key, []).append((block // one.lanes, piece.k_begin))
            assert begun <= 1, "two parts for one place in the workspace"
            assert gone_on <= 1, "two parts for one place in the workspace"
        assert bool(shared) == one.is_cut
        for (_, _, place), parts in shared.items():
            first, last = sharers(one, place)
            assert sorted(part for part, _ in parts) == list(range(first, last + 1))
            assert [part for part, k_begin in parts if k_begin == 0] == [first]


@pytest.mark.parametrize("shape", [QKV, HEAD, DOWN, *SMALL])
def test_numbers_stay_inside_the_kernels_integers(shape):
    for tokens in (*TOKENS, 8192, 131072):
        one = plan(Work(*shape, tokens), 132)
        assert one.ranges <= max(1, one.line_steps)
        assert (one.line_steps + 1) * max(1, one.ranges) < 1 << 31
        assert one.tiles + one.grid < 1 << 31
        assert (one.tiles - one.whole) % one.lanes == 0
        assert one.lanes == 1 or one.lanes == one.token_tiles == one.group


@pytest.mark.parametrize(
    ("width", "row_tiles"), [*((width, 2) for width in BLOCK_N), *((width, 3) for width in TALL_TOKENS)]
)
def test_the_ring_is_deep_and_fits(width, row_tiles):
    depth = stages(width, H200_SHARED_BYTES, row_tiles)
    used = depth * stage_bytes(width, row_tiles) + staging_bytes(width, row_tiles)
    assert depth >= 4
    assert used <= H200_SHARED_BYTES - 1024
    assert depth == 16 or used + stage_bytes(width, row_tiles) > H200_SHARED_BYTES - 1024
    half = stages(width, H200_SHARED_BYTES // 2)
    assert width > 64 or half >= 4
    # what the blocks of a pair push lies in the ring
    assert row_tiles * 64 * width // 2 * 4 <= depth * stage_bytes(width, row_tiles)


@pytest.mark.parametrize(
    ("shape", "tokens", "width", "token_tiles", "most_us"),
    [
        # one token tile, no wider than it must be; as fast as the weights come
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
def test_a_plan_suits_its_shape(shape, tokens, width, token_tiles, most_us):
    one = plan(Work(*shape, tokens), 132)
    assert (one.tile_tokens, one.token_tiles) == (width, token_tiles)
    assert estimate_us(one) <= most_us


@pytest.mark.parametrize("sms", [132, 131])
@pytest.mark.parametrize(("shape", "tokens"), [(GATE_UP, 2048), (GATE_UP, 7900), (DOWN, 8192), (QKV, 8192)])
def test_neighbours_share_the_tokens_of_many_whole_tiles(shape, tokens, sms):
    one = plan(Work(*shape, tokens), sms)
    assert (one.shares_tokens, one.grid % 2, one.whole) == (True, 0, one.tiles)
    for block in range(0, one.grid, 2):
        for left, right in zip(walk(one, block), walk(one, block + 1), strict=True):
            assert (right.unit, right.token_tile) == (left.unit + 1, left.token_tile)


def test_few_tiles_and_odd_units_share_nothing():
    assert not plan(Work(*DOWN, 2048), 132).shares_tokens
    assert not plan(Work(GATE_UP[0] + 128, GATE_UP[1], 8192), 132).shares_tokens


def test_a_small_matrix_is_not_cut():
    assert not plan(Work(576, 576, 8), 132).is_cut


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN])
@pytest.mark.parametrize("tokens", [2048, 4096, 8192])
def test_a_last_wave_that_is_nearly_full_is_not_cut(shape, tokens):
    one = plan(Work(*shape, tokens), 132)
    left = one.tiles % 132
    assert left <= 66 or not one.is_cut


@pytest.mark.parametrize("shape", [QKV, OUTPUT, GATE_UP, DOWN, *SMALL])
@pytest.mark.parametrize("sms", [132, 131, 1])
def test_a_pair_shares_a_tile_and_does_nothing_after_it(shape, sms):
    for tokens in TOKENS:
        work = Work(*shape, tokens)
        for one in (one for one in _candidates(work, sms) if one.pairs):
            assert (one.ranges, one.lanes, one.line_steps, one.is_cut) == (0, 1, 0, False)
            assert one.grid % 2 == 0
            assert one.tile_tokens >= 64
            assert one.whole % one.grid == 0
            left, right = Counter(), Counter()
            for block in range(one.grid):
                pieces = list(walk(one, block))
                assert len(pieces) == one.whole // one.grid + (block // 2 < one.pairs)
                for piece in pieces[one.whole // one.grid :]:
                    found = right if block % 2 else left
                    found[piece.unit, piece.token_tile, block // 2] += piece.k_end - piece.k_begin
                    assert (piece.k_begin == 0) == (block % 2 == 0)
                for piece in pieces[: one.whole // one.grid]:
                    assert (piece.k_begin, piece.k_end) == (0, work.k_tiles)
            assert left.keys() == right.keys()
            assert len(left) == one.pairs
            assert all(left[key] + right[key] == work.k_tiles for key in left)
            whole = {_tile(one, index) for index in range(one.whole)}
            assert len(whole | {key[:2] for key in left}) == one.tiles


def test_blocks_of_a_range_stream_the_same_weights_side_by_side():
    one = Plan(Work(*QKV, 300), tile_tokens=160, group=2, whole=0, lanes=2, ranges=66, grid=132)
    for block in range(0, one.grid, 2):
        left, right = (
            [(piece.unit, piece.k_begin, piece.k_end) for piece in walk(one, block + lane)] for lane in (0, 1)
        )
        assert left == right


@pytest.mark.parametrize("tokens", [1, 9, 64, 65, 300, 2048, 8192])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (576, 576)])
def test_a_whole_plan_sums_over_all_of_k_in_one_block(shape, tokens):
    made = whole_plan(Work(*shape, tokens), 132)
    pieces = [piece for block in range(made.grid) for piece in walk(made, block)]
    assert {(piece.k_begin, piece.k_end) for piece in pieces} == {(0, made.work.k_tiles)}
    assert len({(piece.unit, piece.token_tile) for piece in pieces}) == len(pieces) == made.tiles
