"""Products with packed weights against float32 products of the same bf16 numbers (cuBLAS, no TF32)."""

from dataclasses import replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.arrays import BF16, full_nan, zeros  # noqa: E402
from wisp_runtime.ops.cuda.linear import Linear  # noqa: E402
from wisp_runtime.ops.cuda.linear_plan import TILE_TOKENS, Plan, Work, plan  # noqa: E402
from wisp_runtime.ops.cuda.packing import PackedMatrix, elements, pack_rows  # noqa: E402
from wisp_runtime.ops.reference.packing import packed_rows  # noqa: E402

HALF_ULP = 2**-8  # of bf16, relative
SUMS = 1e-4  # absolute: float32 sums of products of size 1 / sqrt(in), added in another order
SIGMOID = 1e-3  # absolute: those sums again, and a fast exponential
TOKENS = (1, 2, 7, 8, 9, 17, 64, 65, 100, 128, 129, 250, 256, 257, 300, 512, 1000, 2048 + 3)
FEW = (1, 8, 33, 100, 256, 300, 700)
NAN = np.uint16(0xFFFF)  # what memory is filled with that must not be written

numbers = cp.ElementwiseKernel(
    "uint32 seed, float32 scale",
    "uint16 y",
    """
    unsigned long long z = (unsigned long long)i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    float sum = 0;
    for (int j = 0; j < 4; j++) sum += (float)((z >> (16 * j)) & 0xffff) / 65536.0f - 0.5f;
    y = __float_as_uint(sum * 1.7320508f * scale) >> 16;
    """,
    "random_bf16_bits",
)


def random_bits(shape, seed, scale=1.0):
    """Numbers of about a normal distribution, as the bits of bf16."""
    return numbers(np.uint32(seed), np.float32(scale), cp.empty(shape, np.uint16))


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Case:
    """A matrix packed, and its float32 twin; ``tokens`` rows of X in a larger buffer full of NaN."""

    def __init__(self, device, outputs, inputs, order="plain", has_bias=False):
        bits = random_bits((outputs, inputs), outputs + inputs, inputs**-0.5)
        self.outputs, self.inputs, self.device, self.dense = outputs, inputs, device, widened(bits)
        self.weight = PackedMatrix(zeros((elements(outputs, inputs),), BF16), outputs, inputs, order)
        pack_rows(device, bits.view(BF16), self.weight, 0)
        self.bias = self.added = None
        if has_bias:
            bias = random_bits((outputs,), 5)
            places = cp.asarray(packed_rows(outputs, order))
            packed = cp.empty_like(bias)
            packed[places] = bias
            self.bias, self.added = packed.view(BF16), widened(bias)
        device.synchronize()  # weights are asked for before the kernel ahead has ended

    def x(self, tokens, gap=0):
        """``[tokens, in]`` bf16, rows ``in + gap`` apart, and the same as float32."""
        bits = random_bits((tokens, self.inputs), tokens)
        buffer = full_nan((tokens + 200, self.inputs + gap), np.uint16)
        buffer[:tokens, : self.inputs] = bits
        return buffer.view(BF16)[:tokens, : self.inputs], widened(bits)

    def product(self, x):
        y = cp.matmul(x, self.dense.T)
        return y if self.added is None else y + self.added

    def gated(self, x):
        y = self.product(x)
        gate, up = y[:, : self.outputs // 2], y[:, self.outputs // 2 :]
        return gate / (1 + cp.exp(-gate)) * up


def spare_rows(device, name, tokens, columns, dtype):
    """Fill the result's buffer and three rows more with NaN; return those three, as bytes."""
    array = device.workspace.array(name, (tokens + 3, columns), dtype)
    array.data.memset_async(0xFF, array.nbytes)
    return array.view(np.uint8)[tokens:]


def check(y, expected, absolute):
    found = widened(y.view(np.uint16)) if y.dtype == BF16 else y
    relative = HALF_ULP if y.dtype == BF16 else 0
    wrong = ~(cp.abs(found - expected) <= relative * cp.abs(expected) + absolute)
    count = int(wrong.sum())
    if count:
        where = [int(index[0]) for index in cp.nonzero(wrong)]
        raise AssertionError(f"{count} of {wrong.size} wrong, first {where}: {found[tuple(where)]}")


def as_bits(array):
    return array.view(np.uint16 if array.dtype == BF16 else np.uint32)


def check_stable(multiply, y):
    """Five more, one after the other without waiting, give the same bits."""
    first = as_bits(y).copy()
    for _ in range(5):
        y.data.memset_async(0xFF, y.nbytes)
        assert bool((as_bits(multiply()) == first).all())
    for _ in range(5):
        y = multiply()
    assert bool((as_bits(y) == first).all())


@pytest.mark.parametrize(
    ("outputs", "inputs", "tokens"),
    [
        (8, 72, TOKENS),  # less than a row tile, more than a step
        (72, 8, TOKENS),  # less than a step; the second warpgroup has 8 rows
        (576, 576, TOKENS),  # an odd number of row tiles
        (1536, 576, TOKENS),
        (896, 896, TOKENS),
        (896, 4864, TOKENS),
        (1000, 4096, TOKENS),
        (6144, 4096, TOKENS),
        (4096, 14336, FEW),
        (49152, 576, FEW),
        (33, 264, TOKENS),  # rows of the output are not aligned
        (1001, 520, FEW),
    ],
)
def test_linear_is_the_product(device, outputs, inputs, tokens):
    case, linear = Case(device, outputs, inputs), Linear(device)
    for count in tokens:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.y", count, outputs, BF16)
        y = linear(x, case.weight, out_name="test.y")
        assert y.shape == (count, outputs)
        check(y, case.product(dense), SUMS)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        check_stable(lambda x=x: linear(x, case.weight, out_name="test.y"), y)


@pytest.mark.parametrize(
    ("half", "inputs", "tokens"),
    [(8, 72, TOKENS), (72, 136, TOKENS), (1536, 576, TOKENS), (4864, 896, FEW), (14336, 4096, FEW)],
)
def test_swiglu_is_the_gated_product(device, half, inputs, tokens):
    case, linear = Case(device, 2 * half, inputs, "gate_up"), Linear(device)
    for count in tokens:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.y", count, half, BF16)
        y = linear.swiglu(x, case.weight, out_name="test.y")
        assert y.shape == (count, half)
        check(y, case.gated(dense), SIGMOID)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        check_stable(lambda x=x: linear.swiglu(x, case.weight, out_name="test.y"), y)


@pytest.mark.parametrize(
    ("vocab", "inputs", "tokens"),
    [
        (8, 72, TOKENS),
        (1003, 576, TOKENS),
        (49152, 576, FEW),
        (151936, 1024, (1, 7, 64, 256)),
        (128256, 4096, (1, 64)),
    ],
)
def test_logits_are_the_sums_unrounded(device, vocab, inputs, tokens):
    case, linear = Case(device, vocab, inputs), Linear(device)
    for count in tokens:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.logits", count, vocab, np.float32)
        y = linear.logits(x, case.weight, out_name="test.logits")
        assert (y.shape, y.dtype) == ((count, vocab), np.float32)
        check(y, case.product(dense), SUMS)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        check_stable(lambda x=x: linear.logits(x, case.weight, out_name="test.logits"), y)


def in_ranges(width, ranges, lanes):
    """A planner that leaves nothing whole and cuts as it is told."""

    def planner(work: Work, sms: int) -> Plan:
        token_tiles = -(-work.tokens // width)
        group = token_tiles if lanes > 1 else min(8, token_tiles)
        cut = Plan(work, width, group, 0, token_tiles if lanes > 1 else 1, 1, 1)
        count = min(ranges, sms // cut.lanes, cut.line_steps)
        return replace(cut, ranges=count, grid=count * cut.lanes)

    return planner


@pytest.mark.parametrize("width", TILE_TOKENS)
@pytest.mark.parametrize(("ranges", "lanes"), [(1, 1), (7, 1), (132, 1), (13, 2), (66, 2)])
def test_every_width_cut_in_every_way(device, width, ranges, lanes):
    tokens = width * lanes - 3
    for outputs in (320, 1216):  # five and nineteen row tiles
        plain, gated = Case(device, outputs, 1096), Case(device, outputs, 1096, "gate_up")
        linear = Linear(device, planner=in_ranges(width, ranges, lanes))
        x, dense = plain.x(tokens)
        y = linear(x, plain.weight, out_name="test.y")
        check(y, plain.product(dense), SUMS)
        check_stable(lambda x=x, p=plain, f=linear: f(x, p.weight, out_name="test.y"), y)
        check(linear.swiglu(x, gated.weight, out_name="test.z"), gated.gated(dense), SIGMOID)
        logits = linear.logits(x, plain.weight, out_name="test.logits")
        check(logits, plain.product(dense), SUMS)


@pytest.mark.parametrize("tokens", [1, 40, 300])
def test_few_ranges_and_whole_tiles_mix(device, tokens):
    def planner(work: Work, sms: int) -> Plan:
        width = next((width for width in TILE_TOKENS if width >= work.tokens), 96)
        token_tiles = -(-work.tokens // width)
        return Plan(work, width, min(8, token_tiles), 5 * token_tiles, 1, 11, 11)

    case, linear = Case(device, 1408, 1096), Linear(device, planner=planner)
    x, dense = case.x(tokens)
    y = linear(x, case.weight, out_name="test.y")
    check(y, case.product(dense), SUMS)
    check_stable(lambda: linear(x, case.weight, out_name="test.y"), y)


@pytest.mark.parametrize("tokens", [1, 9, 64, 130, 300])
def test_a_bias_is_added_before_rounding(device, tokens):
    for outputs, inputs in ((72, 136), (33, 264), (1152, 896), (6144, 4096)):
        case = Case(device, outputs, inputs, has_bias=True)
        x, dense = case.x(tokens)
        y = Linear(device)(x, case.weight, case.bias, out_name="test.y")
        check(y, case.product(dense), SUMS)
    case = Case(device, 2 * 4864, 896, "gate_up", has_bias=True)
    x, dense = case.x(tokens)
    check(Linear(device).swiglu(x, case.weight, case.bias, out_name="test.y"), case.gated(dense), SIGMOID)


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_rows_of_x_may_be_apart(device, tokens):
    case = Case(device, 576, 576)
    x, dense = case.x(tokens, gap=1152)
    check(Linear(device)(x, case.weight, out_name="test.y"), case.product(dense), SUMS)


def test_rows_at_the_very_end_of_their_memory(device):
    case = Case(device, 576, 576)
    bits = random_bits((300, 576), 9)
    memory = cp.cuda.Memory(bits.nbytes)  # beside CuPy's pool: nothing of ours behind it
    x = cp.ndarray(bits.shape, np.uint16, cp.cuda.MemoryPointer(memory, 0))
    x[:] = bits
    check(Linear(device)(x.view(BF16), case.weight, out_name="test.y"), case.product(widened(bits)), SUMS)


def test_two_blocks_may_share_a_multiprocessor(device):
    case, linear = Case(device, 6144, 4096), Linear(device, shared_bytes=112 * 1024)
    for count in (1, 8, 16, 32, 64):
        x, dense = case.x(count)
        y = linear(x, case.weight, out_name="test.y")
        check(y, case.product(dense), SUMS)
        check_stable(lambda x=x: linear(x, case.weight, out_name="test.y"), y)


def test_products_follow_each_other_without_waiting(device):
    """A chain as in a layer: each reads what the one before wrote, and all share parts and counters."""
    up, down, linear = Case(device, 4096, 1024), Case(device, 1024, 4096), Linear(device)
    for count in (1, 8, 64, 300):
        x, _ = up.x(count)
        results = []
        for round in range(4):
            y = x
            for step in range(6):
                matrix = (up, down)[step % 2].weight
                y = linear(y, matrix, out_name=f"test.chain{step % 2}")
                if round == 0:
                    device.synchronize()
            results.append(as_bits(y).copy())
        assert all(bool((result == results[0]).all()) for result in results)
        assert not bool(cp.isnan(widened(results[0])).any())


def test_nan_and_infinity_stay_in_their_row(device):
    case = Case(device, 576, 576)
    x, dense = case.x(20)
    bits = x.view(np.uint16)
    bits[3, 5], bits[9, 570] = NAN, np.uint16(0x7F80)
    y = widened(Linear(device)(x, case.weight, out_name="test.y").view(np.uint16))
    assert bool(cp.isnan(y[3]).all())
    assert not bool(cp.isfinite(y[9]).any())
    others = [row for row in range(20) if row not in (3, 9)]
    expected = case.product(dense)
    wrong = cp.abs(y - expected) > HALF_ULP * cp.abs(expected) + SUMS
    assert not bool(wrong[others].any())


def test_no_tokens_are_no_work(device):
    case = Case(device, 72, 136)
    x, _ = case.x(1)
    assert Linear(device)(x[:0], case.weight, out_name="test.y").shape == (0, 72)


def test_what_is_reserved_suffices(device):
    assert all(plan(Work(6144, 4096, tokens), device.sms).grid <= device.sms for tokens in TOKENS)
    linear = Linear(device)
    linear.ensure(max(TOKENS))
    device.workspace.array("test.y", (max(TOKENS), 6144), BF16)
    reserved = device.workspace.bytes
    for outputs, inputs in ((6144, 4096), (576, 576)):
        case = Case(device, outputs, inputs)
        for count in TOKENS:
            linear(case.x(count)[0], case.weight, out_name="test.y")
    assert device.workspace.bytes == reserved


def test_arrays_that_do_not_fit_are_refused(device):
    case, gated, linear = Case(device, 64, 72), Case(device, 64, 72, "gate_up"), Linear(device)
    x, _ = case.x(4)
    bias = zeros((64,), BF16)
    refused = [
        lambda: linear(x[:, :64], case.weight, out_name="test.y"),  # columns
        lambda: linear(x.view(np.uint16), case.weight, out_name="test.y"),
        lambda: linear(x.reshape(4, 1, 72), case.weight, out_name="test.y"),
        lambda: linear(zeros((4, 144), BF16)[:, ::2], case.weight, out_name="test.y"),
        lambda: linear(zeros((4, 76), BF16)[:, :72], case.weight, out_name="test.y"),  # rows 152 bytes apart
        lambda: linear(zeros((4, 80), BF16)[:, 4:76], case.weight, out_name="test.y"),  # begins 8 bytes off
        lambda: linear(x, gated.weight, out_name="test.y"),  # the order of rows
        lambda: linear.swiglu(x, case.weight, out_name="test.y"),
        lambda: linear(x, case.weight, bias[:32], out_name="test.y"),
        lambda: linear(x, case.weight, bias.view(np.uint16), out_name="test.y"),
    ]
    for call in refused:
        with pytest.raises(ShapeError):
            call()
