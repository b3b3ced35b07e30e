"""Fused QKV + RoPE GEMM against the plain GEMM and RoPE after it."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from linear_cases import AGAIN, BF16, FEW, TOKENS, Case, full_nan  # noqa: E402

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.attention.rope import Rope  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import to_device, to_host, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.gemm.linear import Linear  # noqa: E402
from wisp_runtime.ops.cuda.gemm.tiling import GemmPlan, GemmShape  # noqa: E402

POSITIONS, INPUTS = 300, 1096
HEADS = [(3, 1, 64), (9, 3, 64), (2, 1, 128), (32, 8, 128), (3, 1, 192), (2, 1, 256)]
ULP = 2**-7  # of bf16, relative: a sum split elsewhere is rounded, rotated and rounded again
NOISE = 2**-7  # absolute: RoPE subtracts two terms of that size


def order_of(size):
    return "plain" if size == 64 else f"rope_interleaved_{size}"


class Step:
    """A step's tokens at random positions and slots, every fifth a padding row."""

    def __init__(self, random, tokens, heads, block_tokens=16):
        _, kv_heads, size = heads
        blocks = tokens // block_tokens + 3
        slots = random.permutation(blocks * block_tokens)[:tokens].astype(np.int64)
        slots[4::5] = -1
        angles = random.uniform(0, 7, (POSITIONS, size // 2))
        self.tables = tuple(to_device(of(angles).astype(np.float32)) for of in (np.cos, np.sin))
        self.positions = to_device(random.integers(-1, POSITIONS + 2, tokens, np.int32))
        self.slots = to_device(slots)
        self.cache = (blocks, kv_heads, block_tokens, size)

    def run(self, project):
        """Return q, keys and values on the host, NaN where nothing was written."""
        keys, values = full_nan(self.cache, BF16), full_nan(self.cache, BF16)
        q = project(*self.tables, self.positions, self.slots, keys, values)
        return to_host(cp.ascontiguousarray(q)), to_host(keys), to_host(values)


class Pair:
    """The same weights by heads and in plain order."""

    def __init__(self, device, heads, has_bias=False):
        rows = (heads[0] + 2 * heads[1]) * heads[2]
        self.device, self.heads = device, heads
        self.by_heads = Case(device, rows, INPUTS, order_of(heads[2]), has_bias)
        self.plain = Case(device, rows, INPUTS, has_bias=has_bias)

    def fused(self, linear, x, step):
        matrix, bias = self.by_heads.weight, self.by_heads.bias
        return step.run(lambda *where: linear.rotary(x, matrix, bias, self.heads, *where, out_name="test.q"))

    def separate(self, linear, x, step):
        def project(cosines, sines, *where):
            qkv = linear(x, self.plain.weight, self.plain.bias, out_name="test.qkv")
            return Rope(self.device)(qkv, self.heads, None, None, 0.0, cosines, sines, *where)

        return step.run(project)


def assert_equal(actual, expected, *, exactly):
    for name, one, other in zip(("q", "keys", "values"), actual, expected, strict=True):
        if exactly:
            assert np.array_equal(one.view(np.uint16), other.view(np.uint16)), name
        else:
            one, other = one.astype(np.float32), other.astype(np.float32)
            assert np.allclose(one, other, rtol=ULP, atol=NOISE, equal_nan=True), name


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_fused_kernel_gives_the_numbers_of_two(device, random, heads, has_bias):
    pair, linear = Pair(device, heads, has_bias), Linear(device)
    for tokens in TOKENS if heads[0] < 32 and not has_bias else FEW:
        x, _ = pair.plain.x(tokens)
        step = Step(random, tokens, heads)
        actual = pair.fused(linear, x, step)
        # Rows of a head of up to 128 stay in their tile, so their sums are split as the plain GEMM's.
        assert_equal(actual, pair.separate(linear, x, step), exactly=heads[2] <= 128)
        for _ in range(AGAIN):
            assert_equal(pair.fused(linear, x, step), actual, exactly=True)


@pytest.mark.parametrize("row_tiles", [2, 3])
@pytest.mark.parametrize("width", [64, 128, 160, 192])
def test_tiles_of_two_and_three_row_tiles_end_where_the_rows_end(device, random, width, row_tiles):
    heads = (5, 1, 128)  # 14 row tiles: the last tall tile has one of none
    pair, tokens = Pair(device, heads), 2 * width - 7

    def planner(work: GemmShape, sms: int) -> GemmPlan:
        tiles = -(-work.rows // (64 * row_tiles)) * -(-work.tokens // width)
        return GemmPlan(work, width, 1, tiles, 1, 0, min(5, sms, tiles), row_tiles=row_tiles)

    x, _ = pair.plain.x(tokens)
    step, linear = Step(random, tokens, heads), Linear(device, planner=planner)
    assert_equal(pair.fused(linear, x, step), pair.separate(linear, x, step), exactly=True)


def test_widest_tiles_with_multicast(device, random):
    heads, tokens = (8, 1, 128), 4096  # ten units
    pair = Pair(device, heads)

    def planner(work: GemmShape, sms: int) -> GemmPlan:
        return GemmPlan(work, 256, 8, 10 * 16, 1, 0, min(sms // 2 * 2, 48), shares_tokens=True)

    x, _ = pair.plain.x(tokens)
    step, linear = Step(random, tokens, heads), Linear(device, planner=planner)
    assert_equal(pair.fused(linear, x, step), pair.separate(linear, x, step), exactly=True)


@pytest.mark.parametrize("heads", [(9, 3, 64), (32, 8, 128), (3, 1, 192), (2, 1, 256)], ids=str)
def test_rope_restores_the_order_of_interleaved_columns(device, random, heads):
    pair, tokens = Pair(device, heads), 65

    def planner(work: GemmShape, sms: int) -> GemmPlan:
        # Without splits every row's sum is the same, wherever the row lies.
        return GemmPlan(work, 96, 1, -(-work.rows // 128), 1, 0, min(sms, -(-work.rows // 128)))

    x, _ = pair.plain.x(tokens)
    step, linear = Step(random, tokens, heads), Linear(device, planner=planner)

    def project(cosines, sines, *where):
        qkv = linear(x, pair.by_heads.weight, out_name="test.qkv")
        rest = (None, None, 0.0, cosines, sines, *where)
        return Rope(device)(qkv, heads, *rest, is_interleaved=heads[2] > 64)

    assert_equal(step.run(project), pair.separate(linear, x, step), exactly=True)


def test_what_does_not_fit_is_refused(device, random):
    heads = (2, 1, 128)
    pair, linear = Pair(device, heads), Linear(device)
    x, _ = pair.plain.x(3)
    step = Step(random, 3, heads)
    keys = full_nan(step.cache, BF16)
    good = [pair.by_heads.weight, None, heads, *step.tables, step.positions, step.slots, keys, keys]
    half = tuple(cp.ascontiguousarray(table[:, :32]) for table in step.tables)
    with pytest.raises(ShapeError, match="3 positions for 2 tokens"):
        linear.rotary(x[:2], *good, out_name="test.q")
    for change in (
        {0: pair.plain.weight},  # the order of its rows
        {2: (3, 1, 128)},
        {2: (6, 2, 64)},
        {3: half[0], 4: half[1]},  # RoPE on half of a head
        {5: step.positions[:2]},
        {7: keys[:, :, :, :64]},
    ):
        arguments = [change.get(i, one) for i, one in enumerate(good)]
        with pytest.raises(ShapeError):
            linear.rotary(x, *arguments, out_name="test.q")
    assert np.isfinite(to_host_float32(linear.rotary(x, *good, out_name="test.q"))).all()
