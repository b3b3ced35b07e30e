"""Quantized GEMMs on mma.sync, for Ampere and Ada, against float32 GEMMs of dequantized weights."""

import sys
from pathlib import Path

import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np  # noqa: E402
from linear_cases import BF16, MAX_INPUTS, NAN, SIGMOID, SUMS, as_bits, check, few, widened, wrongs  # noqa: E402
from linear_checks import check_each  # noqa: E402
from portable_kernels import with_portable_gemms  # noqa: E402
from quantized_case import QuantizedCase  # noqa: E402

from wisp_plan.quantization.packed_format import PACKED_FORMATS  # noqa: E402
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear  # noqa: E402

TOKENS = few(1, 7, 8, 16, 17, 32, 33, 64, 65, 128, 129, 300)
EVERY = pytest.mark.parametrize("packed", PACKED_FORMATS.values(), ids=PACKED_FORMATS)
ONE_A_KERNEL = ("fp8", "fp8_block", "int8", "int4_zero", "int4_g32", "mxfp4", "nvfp4")
SOME = pytest.mark.parametrize("packed", [PACKED_FORMATS[name] for name in ONE_A_KERNEL], ids=ONE_A_KERNEL)


@pytest.fixture(scope="module")
def portable(device):
    return with_portable_gemms(device)


@EVERY
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (8, 32),  # less than a row tile and a packed tile
        (576, 608),  # a row tile of 64 rows at the end; a part of a packed tile
        (1000, 4096),  # K in many splits
        (3072, 1024),
    ],
)
def test_linear_is_the_matmul(portable, packed, outputs, inputs):
    case, linear = QuantizedCase(portable, packed, outputs, inputs), PortableLinear(portable)
    out = case.outputs, BF16, "test.y"
    check_each(case, linear, case.matmul, out, TOKENS, SUMS)


@EVERY
def test_swiglu_is_the_gated_matmul_with_a_bias(portable, packed):
    case = QuantizedCase(portable, packed, 2 * 1496, 896, "gate_up_interleaved", has_bias=True)
    linear = PortableLinear(portable)

    def swiglu(x, weight, out_name):
        return linear.swiglu(x, weight, case.bias, out_name=out_name)

    check_each(case, swiglu, case.gated, (case.outputs // 2, BF16, "test.y"), TOKENS, SIGMOID)


@SOME
def test_logits_are_the_sums_unrounded(portable, packed):
    case, linear = QuantizedCase(portable, packed, 6000, 576), PortableLinear(portable)
    out = case.outputs, np.float32, "test.logits"
    check_each(case, linear.logits, case.matmul, out, few(1, 33, 128), SUMS)


@SOME
@pytest.mark.parametrize("tokens", [1, 9, 64, 130])
def test_a_bias_is_added_before_rounding(portable, packed, tokens):
    linear = PortableLinear(portable)
    for outputs, inputs in few((72, 160), (33, 288), (1152, 896)):
        case = QuantizedCase(portable, packed, outputs, inputs, has_bias=True)
        x, dense = case.x(tokens, gap=64)
        check(linear(x, case.weight, case.bias, out_name="test.y"), case.matmul(dense), SUMS)


@SOME
@pytest.mark.parametrize("tokens", [20, 200])
def test_nan_and_infinity_stay_in_their_row(portable, packed, tokens):
    case, linear = QuantizedCase(portable, packed, 576, 576), PortableLinear(portable)
    x, dense = case.x(tokens)
    bits = x.view(np.uint16)
    bits[3, 5], bits[9, -6] = NAN, np.uint16(0x7F80)
    result = linear(x, case.weight, out_name="test.y")
    y = cp.asnumpy(widened(result.view(np.uint16)))
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[9]).all()
    others = [row for row in range(tokens) if row not in (3, 9)]
    assert not cp.asnumpy(wrongs(result, case.matmul(dense), SUMS))[others].any()


def test_formats_of_one_shape_follow_each_other_without_waiting(portable):
    """Each reads the previous result; all share partial sums, counters and, but for the format, launches."""
    linear = PortableLinear(portable)
    size = min(1024, MAX_INPUTS)
    cases = [QuantizedCase(portable, packed, size, size) for packed in PACKED_FORMATS.values()]
    for count in few(1, 8, 64, 300):
        x, _ = cases[0].x(count)
        results = []
        for repeat in range(4):
            y = x
            for step, case in enumerate(cases):
                y = linear(y, case.weight, out_name=f"test.chain{step % 2}")
                if repeat == 0:
                    portable.synchronize()
            results.append(as_bits(y).copy())
        assert all(bool((result == results[0]).all()) for result in results)
        assert not bool(cp.isnan(widened(results[0])).any())
