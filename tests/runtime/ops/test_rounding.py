"""Rounding to small floats beside ml_dtypes' casts, over every binary16 and values between."""

import ml_dtypes
import numpy as np
import pytest

from wisp_runtime.ops.reference.rounding import from_e4m3, round_e2m1, to_bf16, to_e2m1, to_e4m3

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
VALUES = np.concatenate(
    [
        HALVES[np.isfinite(HALVES)].astype(np.float32),
        np.random.default_rng(1).standard_normal(100_000).astype(np.float32),
    ]
)


def test_e4m3_is_that_of_ml_dtypes():
    within = VALUES[np.abs(VALUES) <= 464]  # beyond, the cast gives NaN, and we the largest value
    np.testing.assert_array_equal(to_e4m3(within), within.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


@pytest.mark.parametrize("large", [465.0, 1e30, -1e30])
def test_e4m3_ends_at_448(large):
    code = to_e4m3(np.array([large], np.float32))
    assert code.view(ml_dtypes.float8_e4m3fn).astype(np.float32)[0] == np.copysign(448, large)


@pytest.mark.parametrize(("bits", "code"), [(0x7F800001, 0x7F), (0x7FFFFFFF, 0x7F), (0xFFC00000, 0xFF)])
def test_e4m3_keeps_a_nan_with_its_sign(bits, code):
    assert to_e4m3(np.array([bits], np.uint32).view(np.float32)).tolist() == [code]


def test_e4m3_codes_come_back_as_their_values():
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(from_e4m3(codes), codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_e2m1_is_that_of_ml_dtypes():
    within = VALUES[np.abs(VALUES) <= 7]
    expected = within.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = to_e2m1(within)
    np.testing.assert_array_equal(table[codes & 7] * np.where(codes & 8, -1, 1), expected)
    np.testing.assert_array_equal(codes >> 3, np.signbit(within))
    np.testing.assert_array_equal(round_e2m1(within), expected)
    np.testing.assert_array_equal(to_e2m1(round_e2m1(VALUES)), to_e2m1(VALUES))


def test_bf16_is_that_of_ml_dtypes():
    np.testing.assert_array_equal(to_bf16(VALUES), VALUES.astype(ml_dtypes.bfloat16).astype(np.float32))
