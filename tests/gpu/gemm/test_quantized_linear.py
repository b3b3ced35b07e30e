"""GEMMs with quantized weights against float32 GEMMs of the dequantized weights."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from linear_cases import BF16, SUMS, as_bits, check_stable, spare_rows, widened  # noqa: E402
from quantized_cases import PACKED_FORMATS, ROUNDED, QuantizedCase  # noqa: E402
from test_linear_rotary import Step, assert_equal, order_of  # noqa: E402

from wisp_runtime.ops.cuda.attention.rope import Rope  # noqa: E402
from wisp_runtime.ops.cuda.gemm.linear import Linear  # noqa: E402
from wisp_runtime.ops.cuda.gemm.planner import data_parallel_plan  # noqa: E402
from wisp_runtime.ops.cuda.gemm.quantized_tiling import BLOCK_N, unsplit_quantized  # noqa: E402

FORMATS = sorted(PACKED_FORMATS)
TOKENS = (1, 7, 8, 9, 17, 64, 65, 200, 257)
NORM = 2.5e-3  # relative error of a result rounded to bf16, 1.7e-3, and of sums in another order
NORM_OF_ROUNDED = 3.2e-3  # where weights are rounded to bf16 too


def numbers_of(y):
    return widened(y.view(np.uint16)) if y.dtype == BF16 else y


def check(case, y, expected, bound=None):
    actual = numbers_of(y)
    error = cp.abs(actual - expected)
    limit = NORM_OF_ROUNDED if case.name in ROUNDED else NORM
    limit *= 1 if error.size > 4096 else 2  # few results vary
    relative = float(cp.linalg.norm(actual - expected) / cp.linalg.norm(expected))
    assert relative < limit, f"{case.name} {case.outputs} x {case.inputs}, {len(y)} tokens: {relative:.2e}"
    if bound is not None:
        over = error > bound
        assert not bool(over.any()), f"{int(over.sum())} of {over.size} sums are wrong"


def inputs_of(name, inputs):
    group = PACKED_FORMATS[name].group or 16
    return -(-inputs // group) * group


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (8, 48),  # less than a row tile and than a tile's columns
        (72, 336),  # neither a multiple of the tile
        (576, 576),  # an odd number of row tiles
        (1000, 2048),
        (33, 272),  # rows of the output are not aligned
        (4096, 1024),
    ],
)
def test_linear_is_the_matmul_of_the_dequantized_weights(device, name, outputs, inputs):
    case, linear = QuantizedCase(device, name, outputs, inputs_of(name, inputs)), Linear(device)
    for count in (*TOKENS, 4096) if outputs == 576 else TOKENS:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.y", count, outputs, BF16)
        y = linear(x, case.weight, out_name="test.y")
        expected = case.matmul(dense)
        check(case, y, expected, cp.abs(expected) * 2**-8 + case.rounding(dense) + SUMS)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        if count in (1, 200):
            check_stable(lambda x=x: linear(x, case.weight, out_name="test.y"), y)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_the_sums_unrounded(device, name):
    case, linear = QuantizedCase(device, name, 1003, inputs_of(name, 576)), Linear(device)
    for count in TOKENS:
        x, dense = case.x(count)
        y = linear.logits(x, case.weight, out_name="test.logits")
        check(case, y, case.matmul(dense), case.rounding(dense) + SUMS)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_swiglu_is_the_gated_matmul(device, name, has_bias):
    case = QuantizedCase(device, name, 2 * 200, inputs_of(name, 336), "gate_up_interleaved", has_bias)
    linear = Linear(device)
    for count in TOKENS:
        x, dense = case.x(count)
        y = linear.swiglu(x, case.weight, case.bias, out_name="test.y")
        check(case, y, case.gated(dense), None)


@pytest.mark.parametrize("name", FORMATS)
def test_a_bias_is_added_after_the_scales(device, name):
    case, linear = QuantizedCase(device, name, 200, inputs_of(name, 336), has_bias=True), Linear(device)
    for count in TOKENS:
        x, dense = case.x(count)
        expected = case.matmul(dense)
        bound = cp.abs(expected) * 2**-8 + case.rounding(dense) + SUMS
        check(case, linear(x, case.weight, case.bias, out_name="test.y"), expected, bound)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("heads", [(3, 1, 64), (4, 2, 128)])
def test_the_rotary_kernel_gives_the_numbers_of_two(device, random, name, heads):
    rows, inputs, linear = (heads[0] + 2 * heads[1]) * heads[2], inputs_of(name, 576), Linear(device)
    by_heads = QuantizedCase(device, name, rows, inputs, order_of(heads[2]))
    plain = QuantizedCase(device, name, rows, inputs)
    for count in TOKENS:
        x, _ = plain.x(count)
        step = Step(random, count, heads)

        def separate(cosines, sines, *where, x=x):
            qkv = linear(x, plain.weight, None, out_name="test.qkv")
            return Rope(device)(qkv, heads, None, None, 0.0, cosines, sines, *where)

        def fused(*where, x=x):
            return linear.rotary(x, by_heads.weight, None, heads, *where, out_name="test.q")

        assert_equal(step.run(fused), step.run(separate), exactly=True)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("op", ["linear", "swiglu", "logits"])
def test_unsplit_plans_are_batch_invariant(device, name, op):
    """A row gets the same bits whatever the batch and its place in it: deterministic mode needs that."""
    permutation = "gate_up_interleaved" if op == "swiglu" else "plain"
    case = QuantizedCase(device, name, 640, inputs_of(name, 1104), permutation)
    linear = Linear(device, data_parallel_plan, quantized_planner=unsplit_quantized)
    multiply = linear if op == "linear" else getattr(linear, op)
    x, _ = case.x(700)

    def bits(begin, end):
        return as_bits(multiply(x[begin:end], case.weight, out_name=f"test.{op}")).copy()

    together = bits(0, 700)
    for count in (1, *(width - spare for width in BLOCK_N for spare in (0, 3)), 257, 500):
        for begin in (0, 5, 700 - count):
            beside = together[begin : begin + count]
            assert bool((bits(begin, begin + count) == beside).all()), f"{count} tokens from {begin} on"
