"""GEMMs with packed weights against float32 GEMMs of the same bf16 numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from linear_cases import BF16, FEW, TOKENS, Case  # noqa: E402
from linear_checks import (  # noqa: E402
    check_bias,
    check_end_of_memory,
    check_linear,
    check_logits,
    check_nan_and_infinity,
    check_no_tokens,
    check_rows_apart,
    check_swiglu,
)

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import zeros  # noqa: E402
from wisp_runtime.ops.cuda.gemm.linear import Linear  # noqa: E402


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
def test_linear_is_the_matmul(device, outputs, inputs, tokens):
    check_linear(device, Linear(device), outputs, inputs, tokens)


@pytest.mark.parametrize(
    ("half", "inputs", "tokens"),
    [(8, 72, TOKENS), (72, 136, TOKENS), (1536, 576, TOKENS), (4864, 896, FEW), (14336, 4096, FEW)],
)
def test_swiglu_is_the_gated_matmul(device, half, inputs, tokens):
    check_swiglu(device, Linear(device), half, inputs, tokens)


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
    check_logits(device, Linear(device), vocab, inputs, tokens)


@pytest.mark.parametrize("tokens", [1, 9, 64, 130, 300])
def test_a_bias_is_added_before_rounding(device, tokens):
    check_bias(device, Linear(device), ((72, 136), (33, 264), (1152, 896), (6144, 4096)), tokens)


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_rows_of_x_may_be_apart(device, tokens):
    check_rows_apart(device, Linear(device), tokens)


def test_rows_at_the_very_end_of_their_memory(device):
    check_end_of_memory(device, Linear(device), inputs=576)


def test_nan_and_infinity_stay_in_their_row(device):
    check_nan_and_infinity(device, Linear(device), tokens=20)


def test_no_tokens_are_no_work(device):
    check_no_tokens(device, Linear(device))


def test_arrays_that_do_not_fit_are_refused(device):
    case, gated, linear = Case(device, 64, 72), Case(device, 64, 72, "gate_up_interleaved"), Linear(device)
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
