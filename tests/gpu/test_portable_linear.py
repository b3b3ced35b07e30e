"""Products on mma.sync, as Ampere and Ada have them, against float32 products of the same bf16 numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent / "products"))
from linear_cases import (  # noqa: E402
    BF16,
    CHAIN,
    NAN,
    SIGMOID,
    SUMS,
    Case,
    as_bits,
    check,
    check_stable,
    random_bits,
    spare_rows,
    widened,
    wrongs,
)
from linear_cases import TOKENS as MANY  # noqa: E402

from wisp_runtime.ops.cuda.portable_linear import PortableLinear  # noqa: E402

TOKENS = tuple(sorted({*MANY, 16, 33, 127}))  # every tile full, one short, one over
FEW = (1, 8, 16, 31, 64, 128, 300)


@pytest.mark.parametrize(
    ("outputs", "inputs", "tokens"),
    [
        (8, 72, TOKENS),  # less than a row tile, more than a step
        (72, 8, TOKENS),  # less than a step; the second packed block has 8 rows
        (576, 576, TOKENS),  # the last row tile has one packed block; K in two parts
        (1000, 4096, TOKENS),  # K in as many parts as there are
        (6144, 4096, FEW),
        (4096, 14336, FEW),
        (49152, 576, (1, 33, 128)),  # never cut
        (33, 264, TOKENS),  # rows of the output are not aligned
        (1001, 520, FEW),
    ],
)
def test_linear_is_the_product(device, outputs, inputs, tokens):
    case, linear = Case(device, outputs, inputs), PortableLinear(device)
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
    ("half", "inputs", "tokens"), [(8, 72, TOKENS), (72, 136, TOKENS), (1536, 576, TOKENS), (4864, 896, FEW)]
)
def test_swiglu_is_the_gated_product(device, half, inputs, tokens):
    case, linear = Case(device, 2 * half, inputs, "gate_up"), PortableLinear(device)
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
    [(8, 72, TOKENS), (1003, 576, TOKENS), (49152, 576, FEW), (128256, 4096, (1, 64))],
)
def test_logits_are_the_sums_unrounded(device, vocab, inputs, tokens):
    case, linear = Case(device, vocab, inputs), PortableLinear(device)
    vocab = case.outputs
    for count in tokens:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.logits", count, vocab, np.float32)
        y = linear.logits(x, case.weight, out_name="test.logits")
        assert (y.shape, y.dtype) == ((count, vocab), np.float32)
        check(y, case.product(dense), SUMS)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        check_stable(lambda x=x: linear.logits(x, case.weight, out_name="test.logits"), y)


@pytest.mark.parametrize("tokens", [1, 9, 64, 130])
def test_a_bias_is_added_before_rounding(device, tokens):
    linear = PortableLinear(device)
    for outputs, inputs in ((72, 136), (33, 264), (1152, 896)):
        case = Case(device, outputs, inputs, has_bias=True)
        x, dense = case.x(tokens)
        check(linear(x, case.weight, case.bias, out_name="test.y"), case.product(dense), SUMS)
    case = Case(device, 2 * 4864, 896, "gate_up", has_bias=True)
    x, dense = case.x(tokens)
    check(linear.swiglu(x, case.weight, case.bias, out_name="test.y"), case.gated(dense), SIGMOID)


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_rows_of_x_may_be_apart(device, tokens):
    case = Case(device, 576, 576)
    x, dense = case.x(tokens, gap=1152)
    check(PortableLinear(device)(x, case.weight, out_name="test.y"), case.product(dense), SUMS)


def test_rows_at_the_very_end_of_their_memory(device):
    case = Case(device, 576, 584)
    bits = random_bits((300, case.weight.inputs), 9)
    memory = cp.cuda.Memory(bits.nbytes)  # beside CuPy's pool: nothing of ours behind it
    x = cp.ndarray(bits.shape, np.uint16, cp.cuda.MemoryPointer(memory, 0))
    x[:] = bits
    y = PortableLinear(device)(x.view(BF16), case.weight, out_name="test.y")
    check(y, case.product(widened(bits)), SUMS)


@pytest.mark.parametrize("tokens", [20, 200])
def test_nan_and_infinity_stay_in_their_row(device, tokens):
    case = Case(device, 576, 576)
    x, dense = case.x(tokens)
    bits = x.view(np.uint16)
    bits[3, 5], bits[9, -6] = NAN, np.uint16(0x7F80)
    result = PortableLinear(device)(x, case.weight, out_name="test.y")
    y = cp.asnumpy(widened(result.view(np.uint16)))
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[9]).any()
    others = [row for row in range(tokens) if row not in (3, 9)]
    assert not cp.asnumpy(wrongs(result, case.product(dense), SUMS))[others].any()


def test_no_tokens_are_no_work(device):
    case = Case(device, 72, 136)
    x, _ = case.x(1)
    assert PortableLinear(device)(x[:0], case.weight, out_name="test.y").shape == (0, 72)


def test_products_follow_each_other_without_waiting(device):
    """A chain as in a layer: each reads what the one before wrote, and all share parts and counters."""
    up, down, linear = Case(device, *CHAIN), Case(device, *CHAIN[::-1]), PortableLinear(device)
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


def test_what_is_reserved_suffices(device):
    case, linear = Case(device, 1000, 4096), PortableLinear(device)
    for most in (8, 80, max(TOKENS)):
        linear.ensure(most)
        device.workspace.array("test.y", (max(TOKENS), 1000), BF16)
        reserved = device.workspace.bytes
        for count in (count for count in TOKENS if count <= most):
            linear(case.x(count)[0], case.weight, out_name="test.y")
        assert device.workspace.bytes == reserved
