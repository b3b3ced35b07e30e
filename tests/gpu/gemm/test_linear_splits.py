"""GEMMs split in every way, at every width of a tile, sharing partial tiles, counters and SMs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from linear_cases import BF16, SIGMOID, SUMS, TOKENS, Case, as_bits, check, check_stable, few  # noqa: E402
from linear_checks import check_chain  # noqa: E402

from wisp_plan.memory.buffers.gemm import BLOCK_N  # noqa: E402
from wisp_runtime.ops.cuda.gemm.linear import Linear  # noqa: E402
from wisp_runtime.ops.cuda.gemm.planner import data_parallel_plan, plan  # noqa: E402
from wisp_runtime.ops.cuda.gemm.tiling import BLOCK_N_OF_192_ROWS, GemmPlan, GemmShape  # noqa: E402


def in_ranges(width, ranges, streams):
    """A planner of stream-K tiles alone, with so many ranges and streams."""

    def planner(work: GemmShape, sms: int) -> GemmPlan:
        n_tiles = -(-work.tokens // width)
        group = n_tiles if streams > 1 else min(8, n_tiles)
        one_range = GemmPlan(work, width, group, 0, n_tiles if streams > 1 else 1, 1, 1)
        count = min(ranges, sms // one_range.streams, one_range.stream_steps)
        return replace(one_range, ranges=count, grid=count * one_range.streams)

    return planner


@pytest.mark.parametrize("width", BLOCK_N)
@pytest.mark.parametrize(("ranges", "streams"), [(1, 1), (7, 1), (132, 1), (13, 2), (66, 2)])
def test_every_width_split_in_every_way(device, width, ranges, streams):
    tokens = width * streams - 3
    for outputs in few(320, 1216):  # five and nineteen row tiles
        plain, gated = Case(device, outputs, 1096), Case(device, outputs, 1096, "gate_up_interleaved")
        linear = Linear(device, planner=in_ranges(width, ranges, streams))
        x, dense = plain.x(tokens)
        y = linear(x, plain.weight, out_name="test.y")
        check(y, plain.matmul(dense), SUMS)
        check_stable(lambda x=x, p=plain, f=linear: f(x, p.weight, out_name="test.y"), y)
        check(linear.swiglu(x, gated.weight, out_name="test.z"), gated.gated(dense), SIGMOID)
        logits = linear.logits(x, plain.weight, out_name="test.logits")
        check(logits, plain.matmul(dense), SUMS)


def in_pairs(width, row_tiles, blocks):
    """A planner that gives the tiles of an incomplete wave of ``blocks`` blocks to CTA pairs."""

    def planner(work: GemmShape, sms: int) -> GemmPlan:
        n_tiles = -(-work.tokens // width)
        empty = GemmPlan(work, width, min(8, n_tiles), 0, 1, 0, 1, row_tiles=row_tiles)
        pairs = empty.tiles % blocks
        assert 0 < 2 * pairs <= blocks <= sms
        grid = blocks if empty.tiles > pairs else 2 * pairs
        return replace(empty, full_tiles=empty.tiles - pairs, grid=grid, pairs=pairs)

    return planner


@pytest.mark.parametrize(
    ("width", "row_tiles"),
    [*((width, 2) for width in BLOCK_N if width >= 64), *((width, 3) for width in BLOCK_N_OF_192_ROWS)],
)
@pytest.mark.parametrize("blocks", [4, 100])  # some full tiles, none
def test_pairs_of_blocks_share_the_last_tiles(device, width, row_tiles, blocks):
    linear = Linear(device, planner=in_pairs(width, row_tiles, blocks))
    heights = (320, 640) if row_tiles == 2 else (464, 960)  # three and five m-tiles, the first's last ragged
    for outputs, inputs in few(*zip(heights, (1056, 1024), strict=True)):  # odd and even numbers of steps
        plain, gated = Case(device, outputs, inputs), Case(device, outputs, inputs, "gate_up_interleaved")
        # a part of the second tile's second half, of its first half; two full tiles
        for tokens in few(2 * width - 3, width + 5, 2 * width):
            x, dense = plain.x(tokens)
            y = linear(x, plain.weight, out_name="test.y")
            check(y, plain.matmul(dense), SUMS)
            check_stable(lambda x=x, p=plain: linear(x, p.weight, out_name="test.y"), y)
            check(linear.swiglu(x, gated.weight, out_name="test.z"), gated.gated(dense), SIGMOID)
            logits = linear.logits(x, plain.weight, out_name="test.logits")
            check(logits, plain.matmul(dense), SUMS)


def check_biased_and_gated(linear, plain, gated, tokens):
    """Check the GEMM of ``tokens`` rows with ``plain``'s matrix and bias, and that with ``gated``'s."""
    x, dense = plain.x(tokens)
    y = linear(x, plain.weight, plain.bias, out_name="test.y")
    check(y, plain.matmul(dense), SUMS)
    check_stable(lambda: linear(x, plain.weight, plain.bias, out_name="test.y"), y)
    inputs, dense = gated.x(tokens)
    check(linear.swiglu(inputs, gated.weight, out_name="test.z"), gated.gated(dense), SIGMOID)


@pytest.mark.parametrize("width", BLOCK_N_OF_192_ROWS)
def test_tiles_of_192_rows_may_be_full(device, width):
    def planner(work: GemmShape, sms: int) -> GemmPlan:
        n_tiles = -(-work.tokens // width)
        empty = GemmPlan(work, width, min(8, n_tiles), 0, 1, 0, 1, row_tiles=3)
        return replace(empty, full_tiles=empty.tiles, grid=min(5, empty.tiles))  # several waves

    linear = Linear(device, planner=planner)
    for outputs in few(136, 33, 1216):  # three row tiles, one, nineteen
        plain, gated = (
            Case(device, outputs, 1096, has_bias=True),
            Case(device, 32 * outputs, 72, "gate_up_interleaved"),
        )
        for tokens in few(2 * width + 7, 3):
            check_biased_and_gated(linear, plain, gated, tokens)


@pytest.mark.parametrize("grid", [2, 6, 132])
def test_clusters_multicast_their_tokens(device, grid):
    def planner(work: GemmShape, sms: int) -> GemmPlan:
        n_tiles = -(-work.tokens // 256)
        empty = GemmPlan(work, 256, min(3, n_tiles), 0, 1, 0, 1, shares_tokens=True)
        return replace(empty, full_tiles=empty.tiles, grid=min(grid, empty.tiles, sms // 2 * 2))

    linear = Linear(device, planner=planner)
    for outputs in few(232, 1504):  # two m-tiles, the last ragged; twelve
        plain, gated = (
            Case(device, outputs, 1096, has_bias=True),
            Case(device, 2 * outputs, 72, "gate_up_interleaved"),
        )
        for tokens in few(5 * 256 - 100, 3, 256):
            check_biased_and_gated(linear, plain, gated, tokens)


ROW_COUNTS = (1, *(width - spare for width in BLOCK_N for spare in (0, 3)), 257, 700)
SHARED = 3000  # tokens: enough for full tiles that share their copies


@pytest.mark.parametrize("op", ["linear", "swiglu", "logits"])
def test_data_parallel_plans_are_batch_invariant(device, op):
    """A row gets the same bits whatever the batch and its place in it: deterministic mode needs that."""
    case = Case(
        device, 6144, 1096, "gate_up_interleaved" if op == "swiglu" else "plain", has_bias=op != "logits"
    )
    linear, bias = Linear(device, planner=data_parallel_plan), () if op == "logits" else (case.bias,)
    multiply = linear if op == "linear" else getattr(linear, op)
    x, _ = case.x(SHARED)

    def bits(begin, end):
        return as_bits(multiply(x[begin:end], case.weight, *bias, out_name=f"test.{op}")).copy()

    together = bits(0, SHARED)
    for count in ROW_COUNTS:
        for begin in (0, 5, SHARED - count):
            beside = together[begin : begin + count]
            assert bool((bits(begin, begin + count) == beside).all()), f"{count} tokens from {begin} on"


@pytest.mark.parametrize("tokens", [1, 40, 300])
def test_few_ranges_and_full_tiles_mix(device, tokens):
    def planner(work: GemmShape, sms: int) -> GemmPlan:
        width = next((width for width in BLOCK_N if width >= work.tokens), 96)
        n_tiles = -(-work.tokens // width)
        return GemmPlan(work, width, min(8, n_tiles), 5 * n_tiles, 1, 11, 11)

    case, linear = Case(device, 1408, 1096), Linear(device, planner=planner)
    x, dense = case.x(tokens)
    y = linear(x, case.weight, out_name="test.y")
    check(y, case.matmul(dense), SUMS)
    check_stable(lambda: linear(x, case.weight, out_name="test.y"), y)


def test_two_blocks_may_share_an_sm(device):
    case, linear = Case(device, 6144, 4096), Linear(device, shared_bytes=device.shared_bytes // 2)
    for count in few(64, 1, 8, 16, 32):
        x, dense = case.x(count)
        y = linear(x, case.weight, out_name="test.y")
        check(y, case.matmul(dense), SUMS)
        check_stable(lambda x=x: linear(x, case.weight, out_name="test.y"), y)


def test_gemms_follow_each_other_without_waiting(device):
    check_chain(device, Linear(device))


def test_reserved_buffers_suffice(device):
    assert all(
        plan(GemmShape(6144, 4096, tokens), device.sm_count).grid <= device.sm_count for tokens in TOKENS
    )
    linear = Linear(device)
    linear.reserve(max(TOKENS))
    device.workspace.array("test.y", (max(TOKENS), 6144), BF16)
    reserved = device.workspace.bytes
    for outputs, inputs in ((6144, 4096), (576, 576)):
        case = Case(device, outputs, inputs)
        for count in TOKENS:
            linear(case.x(count)[0], case.weight, out_name="test.y")
    assert device.workspace.bytes == reserved
