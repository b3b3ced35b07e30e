"""Numbers and scales of rows: nearest, within a bound, all-zero rows included."""

import ml_dtypes
import numpy as np
import pytest

from wisp_runtime.quantize.encoding import (
    INT4_REACH,
    fp8_rows,
    int4_groups,
    int8_rows,
    nvfp4_groups,
    nvfp4_tensor_scale,
)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.fixture
def rows():
    made = np.random.default_rng(5).standard_normal((7, 96)).astype(np.float32) * 0.02
    made[2] = 0
    made[3, 5] = 900.0
    made[4] *= 1e-30
    return made


def nibbles(packed):
    octets = np.ascontiguousarray(packed).view(np.uint8)
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(packed), -1)


def test_fp8_has_a_relative_error_of_at_most_a_sixteenth(rows):
    codes, scales = fp8_rows(rows)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales
    smallest = scales * 2.0**-10  # half of the smallest subnormal
    assert (np.abs(values - rows) <= np.maximum(np.abs(rows) / 16, smallest) * 1.0001).all()
    assert codes.dtype == np.uint8


def test_int8_is_within_half_a_step(rows):
    numbers, scales = int8_rows(rows)
    assert (np.abs(numbers * scales - rows) <= scales / 2 * 1.001).all()
    assert np.abs(numbers).max() == 127


@pytest.mark.parametrize("group", [32, 96])
def test_int4_is_within_half_a_step_or_clipped_at_one_end(rows, group):
    words, scales = int4_groups(rows, group=group)
    assert words.dtype == np.int32
    assert words.shape == (7, 12)
    numbers = nibbles(words).astype(np.float32) - 8
    steps = np.repeat(scales, group, axis=1)
    assert (np.abs(numbers * steps - rows) <= steps * 0.53).all()  # scales are rounded to bf16 as well
    np.testing.assert_array_equal(scales, scales.astype(ml_dtypes.bfloat16).astype(np.float32))
    largest = np.abs(rows.reshape(7, -1, group)).max(axis=2)
    np.testing.assert_allclose(scales[largest > 0], largest[largest > 0] / INT4_REACH, rtol=2**-8)


def test_int4_codes_lie_eight_in_a_word_the_first_lowest():
    row = np.array([[-8, -7, -6, -5, -4, -3, -2, 7.0] * 4], np.float32)
    words, scales = int4_groups(row * 7.5 / 8, group=32)
    assert scales.tolist() == [[1.0]]
    assert words.tolist() == [[0xF6543210 - (1 << 32)] * 4]


def test_nvfp4_is_within_the_steps_of_e2m1(rows):
    whole = nvfp4_tensor_scale(float(np.abs(rows).max()))
    packed, stored = nvfp4_groups(rows, tensor_scale=whole)
    scales = stored.view(ml_dtypes.float8_e4m3fn).astype(np.float32) / np.float32(whole)
    assert stored.max() == 0x7E  # the largest group's scale is E4M3's largest number, 448
    values = E2M1[nibbles(packed)] * np.repeat(scales, 16, axis=1)
    steps = np.repeat(scales, 16, axis=1)
    has_scale = steps > 0
    assert (np.abs(values - rows) <= steps * 1.2)[
        has_scale
    ].all()  # 4 to 6 is two, half of it and E4M3's error
    assert (values[~has_scale] == 0).all()


def test_zeros_stay_zeros_with_a_scale_that_can_be_read():
    zeros = np.zeros((2, 32), np.float32)
    for numbers, scales in (fp8_rows(zeros), int8_rows(zeros), int4_groups(zeros, group=32)):
        assert (scales > 0).all()
        assert not (nibbles(numbers) != 8).any() if numbers.dtype == np.int32 else not numbers.any()
    assert nvfp4_tensor_scale(0.0) == 1.0
