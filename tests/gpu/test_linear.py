"""Products with packed weights against float32 products of the same bf16 numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent / "products"))
from linear_cases import (  # noqa: E402
    BF16,
    FEW,
    NAN,
    SIGMOID,
    SUMS,
    TOKENS,
    Case,
    check,
    check_stable,
    random_bits,
    spare_rows,
    widened,
    wrongs,
)

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.arrays import zeros  # noqa: E402
from wisp_runtime.ops.cuda.linear import Linear  # noqa: E402


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
    outputs = case.outputs
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
    half = case.outputs // 2
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
    vocab = case.outputs
    for count in tokens:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.logits", count, vocab, np.float32)
        y = linear.logits(x, case.weight, out_name="test.logits")
        assert (y.shape, y.dtype) == ((count, vocab), np.float32)
        check(y, case.product(dense), SUMS)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        check_stable(lambda x=x: linear.logits(x, case.weight, out_name="test.logits"), y)


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
    bits = random_bits((300, case.weight.inputs), 9)
    memory = cp.cuda.Memory(bits.nbytes)  # beside CuPy's pool: nothing of ours behind it
    x = cp.ndarray(bits.shape, np.uint16, cp.cuda.MemoryPointer(memory, 0))
    x[:] = bits
    check(Linear(device)(x.view(BF16), case.weight, out_name="test.y"), case.product(widened(bits)), SUMS)


def test_nan_and_infinity_stay_in_their_row(device):
    case = Case(device, 576, 576)
    x, dense = case.x(20)
    bits = x.view(np.uint16)
    bits[3, 5], bits[9, -6] = NAN, np.uint16(0x7F80)
    result = Linear(device)(x, case.weight, out_name="test.y")
    y = cp.asnumpy(widened(result.view(np.uint16)))
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[9]).any()
    others = [row for row in range(20) if row not in (3, 9)]
    assert not cp.asnumpy(wrongs(result, case.product(dense), SUMS))[others].any()


def test_no_tokens_are_no_work(device):
    case = Case(device, 72, 136)
    x, _ = case.x(1)
    assert Linear(device)(x[:0], case.weight, out_name="test.y").shape == (0, 72)


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
