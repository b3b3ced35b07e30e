"""GEMMs on mma.sync, for Ampere and Ada, against float32 GEMMs of the same bf16 numbers."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from linear_cases import BF16, Case  # noqa: E402
from linear_cases import TOKENS as MANY  # noqa: E402
from linear_checks import (  # noqa: E402
    check_bias,
    check_chain,
    check_end_of_memory,
    check_linear,
    check_logits,
    check_nan_and_infinity,
    check_no_tokens,
    check_rows_apart,
    check_swiglu,
)

from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear  # noqa: E402

TOKENS = tuple(sorted({*MANY, 16, 33, 127}))  # every tile full, one short, one over
FEW = (1, 8, 16, 31, 64, 128, 300)


@pytest.mark.parametrize(
    ("outputs", "inputs", "tokens"),
    [
        (8, 72, TOKENS),  # less than a row tile, more than a step
        (72, 8, TOKENS),  # less than a step; the second packed block has 8 rows
        (576, 576, TOKENS),  # the last row tile has one packed block; K in two splits
        (1000, 4096, TOKENS),  # K in the most splits
        (6144, 4096, FEW),
        (4096, 14336, FEW),
        (49152, 576, (1, 33, 128)),  # never split
        (33, 264, TOKENS),  # rows of the output are not aligned
        (1001, 520, FEW),
    ],
)
def test_linear_is_the_matmul(device, outputs, inputs, tokens):
    check_linear(device, PortableLinear(device), outputs, inputs, tokens)


@pytest.mark.parametrize(
    ("half", "inputs", "tokens"), [(8, 72, TOKENS), (72, 136, TOKENS), (1536, 576, TOKENS), (4864, 896, FEW)]
)
def test_swiglu_is_the_gated_matmul(device, half, inputs, tokens):
    check_swiglu(device, PortableLinear(device), half, inputs, tokens)


@pytest.mark.parametrize(
    ("vocab", "inputs", "tokens"),
    [(8, 72, TOKENS), (1003, 576, TOKENS), (49152, 576, FEW), (128256, 4096, (1, 64))],
)
def test_logits_are_the_sums_unrounded(device, vocab, inputs, tokens):
    check_logits(device, PortableLinear(device), vocab, inputs, tokens)


@pytest.mark.parametrize("tokens", [1, 9, 64, 130])
def test_a_bias_is_added_before_rounding(device, tokens):
    check_bias(device, PortableLinear(device), ((72, 136), (33, 264), (1152, 896)), tokens)


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_rows_of_x_may_be_apart(device, tokens):
    check_rows_apart(device, PortableLinear(device), tokens)


def test_rows_at_the_very_end_of_their_memory(device):
    check_end_of_memory(device, PortableLinear(device), inputs=584)


@pytest.mark.parametrize("tokens", [20, 200])
def test_nan_and_infinity_stay_in_their_row(device, tokens):
    check_nan_and_infinity(device, PortableLinear(device), tokens)


def test_no_tokens_are_no_work(device):
    check_no_tokens(device, PortableLinear(device))


def test_gemms_follow_each_other_without_waiting(device):
    check_chain(device, PortableLinear(device))


def test_reserved_buffers_suffice(device):
    case, linear = Case(device, 1000, 4096), PortableLinear(device)
    for most in (8, 80, max(TOKENS)):
        linear.reserve(most)
        device.workspace.array("test.y", (max(TOKENS), 1000), BF16)
        reserved = device.workspace.bytes
        for count in (count for count in TOKENS if count <= most):
            linear(case.x(count)[0], case.weight, out_name="test.y")
        assert device.workspace.bytes == reserved
