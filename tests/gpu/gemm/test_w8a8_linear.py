"""GEMMs of E4M3 weights and activations against float32 GEMMs of the same E4M3 numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parent))
from linear_cases import BF16, as_bits, check_stable, spare_rows, widened  # noqa: E402
from quantized_cases import QuantizedCase  # noqa: E402
from quantized_matrix import PLACES, quantized_tokens  # noqa: E402
from test_linear_rotary import Step, assert_equal, order_of  # noqa: E402

from wisp_runtime.ops.cuda.attention.rope import Rope  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.gemm.linear import Linear  # noqa: E402
from wisp_runtime.ops.cuda.gemm.quantized_tiling import plan_w8a8  # noqa: E402
from wisp_runtime.ops.cuda.gemm.tiling import GemmShape  # noqa: E402
from wisp_runtime.ops.cuda.gemm.token_codes import TokenCodes  # noqa: E402

FORMATS = ("fp8", "fp8_block")
TOKENS = (65, 100, 128, 129, 192, 200, 257, 700)
NORM = 3e-3  # relative error: a result rounded to bf16 is 1.7e-3 off, 2,048 columns in 14 bits 0.9e-3


def rounded(dense, name):
    """Return float32 activations as numbers of E4M3 times their scales."""
    numbers, scales, _ = quantized_tokens(cp.asnumpy(dense), in_groups=name == "fp8_block")
    return to_device(numbers.astype(np.float32) * scales)


def linear_of(device):
    linear = Linear(device)
    linear.reserve(4096, 14336)
    return linear


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("columns", [16, 336, 2048, 4096, 14336])
def test_activations_are_rounded_to_the_nearest(device, random_bf16, columns, in_groups):
    host = random_bf16((67, columns), 3.0)
    host[5] = 0
    codes = TokenCodes(device)
    codes.reserve(70, columns)
    made = codes(to_device(host), in_groups=in_groups)
    numbers, _, scales = quantized_tokens(host.astype(np.float32), in_groups=in_groups)
    actual = to_host(made.codes.view(np.uint8)).reshape(67, -1, 16)
    expected = numbers.view(np.uint8).reshape(67, -1, 16)[:, :, PLACES]
    assert np.array_equal(actual, expected)
    found = to_host(made.scales)
    found = found.reshape(-1, made.stride)[:, :67].T if in_groups else found[:67, None]
    assert np.array_equal(found[:, : scales.shape[1]], scales)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(72, 336), (576, 576), (1000, 2048), (33, 272), (4096, 1024), (136, 14336)]
)
def test_linear_is_the_matmul_of_the_rounded_numbers(device, name, outputs, inputs):
    case, linear = QuantizedCase(device, name, outputs, inputs), linear_of(device)
    for count in (*TOKENS, 4096) if outputs == 576 else TOKENS:
        x, dense = case.x(count)
        spare = spare_rows(device, "test.y", count, outputs, BF16)
        y = linear(x, case.weight, out_name="test.y")
        expected = case.matmul(rounded(dense, name))
        actual = widened(y.view(np.uint16))
        relative = float(cp.linalg.norm(actual - expected) / cp.linalg.norm(expected))
        assert relative < NORM, f"{count} tokens: {relative:.2e}"
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        unrounded = float(cp.linalg.norm(actual - case.matmul(dense)) / cp.linalg.norm(expected))
        assert unrounded < 0.04, "E4M3 has three bits"
        check_stable(lambda x=x: linear(x, case.weight, out_name="test.y"), y)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("outputs", "inputs", "tokens"), [(4096, 14336, 4096), (28672, 4096, 4096), (4096, 1024, 700)]
)
def test_loads_of_weights_never_meet_the_next_copy(device, name, outputs, inputs, tokens):
    """Tiles of 192 tokens keep shared memory busy for longer than a stage's next copy takes."""
    case, linear = QuantizedCase(device, name, outputs, inputs), linear_of(device)
    packed = case.weight.packed
    shape = GemmShape(outputs, inputs, tokens, packed.tile_columns)
    assert plan_w8a8(packed, shape, device.sm_count).block_n == 192
    x, dense = case.x(tokens)
    y = linear(x, case.weight, out_name="test.y")
    expected = case.matmul(rounded(dense, name))
    relative = float(cp.linalg.norm(widened(y.view(np.uint16)) - expected) / cp.linalg.norm(expected))
    assert relative < NORM, f"{relative:.2e}"
    check_stable(lambda: linear(x, case.weight, out_name="test.y"), y)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_of_16_bit_activations_however_many_sequences_there_are(device, name):
    linear, case = linear_of(device), QuantizedCase(device, name, 1000, 576)
    exact = Linear(device, rounds_tokens=False)
    for count in (64, 65, 300):
        x, _ = case.x(count)
        logits = as_bits(linear.logits(x, case.weight, out_name="test.logits")).copy()
        assert bool((as_bits(exact.logits(x, case.weight, out_name="test.logits")) == logits).all())


@pytest.mark.parametrize("name", FORMATS)
def test_other_ops_take_the_same_sums(device, random, name):
    linear, heads = linear_of(device), (4, 2, 128)
    gated = QuantizedCase(device, name, 2 * 200, 336, "gate_up_interleaved", has_bias=True)
    plain, by_heads = (QuantizedCase(device, name, 1024, 576, order) for order in ("plain", order_of(128)))
    for count in TOKENS:
        x, dense = gated.x(count)
        expected = gated.gated(rounded(dense, name))
        y = widened(linear.swiglu(x, gated.weight, gated.bias, out_name="test.y").view(np.uint16))
        assert float(cp.linalg.norm(y - expected) / cp.linalg.norm(expected)) < 2 * NORM
        x, _ = plain.x(count)
        step = Step(random, count, heads)

        def separate(cosines, sines, *where, x=x):
            qkv = linear(x, plain.weight, None, out_name="test.qkv")
            return Rope(device)(qkv, heads, None, None, 0.0, cosines, sines, *where)

        def fused(*where, x=x):
            return linear.rotary(x, by_heads.weight, None, heads, *where, out_name="test.q")

        assert_equal(step.run(fused), step.run(separate), exactly=True)
