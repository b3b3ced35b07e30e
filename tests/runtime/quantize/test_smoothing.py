"""The search for scales of columns, and that for scales of groups."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from wisp_plan.quantization.scheme import Scheme
from wisp_runtime.quantize.encoding import int4_groups, int4_values, nvfp4_groups, nvfp4_values
from wisp_runtime.quantize.smoothing import search, shared_by_heads
from wisp_runtime.weights.dequantize import dequantize

RANDOM = np.random.default_rng(4)


def round_all(weights):
    return [int4_values(weight, group=32) for weight in weights]


def found(inputs, weights, share=lambda scales: scales):
    with ThreadPoolExecutor(2) as executor:
        return search(inputs, weights, round_all, executor, share)


def test_columns_with_large_inputs_are_widened():
    inputs = RANDOM.standard_normal((64, 96)).astype(np.float32)
    inputs[:, ::12] *= 30
    weights = [RANDOM.standard_normal((rows, 96)).astype(np.float32) for rows in (16, 40)]
    result = found(inputs, weights)
    assert result.alpha > 0
    assert result.loss < 0.7 * result.plain_loss
    assert result.scales[::12].min() > np.delete(result.scales, np.s_[::12]).max()


def test_nothing_is_scaled_where_all_inputs_are_alike():
    inputs = np.sign(RANDOM.standard_normal((64, 96))).astype(np.float32)
    result = found(inputs, [RANDOM.standard_normal((16, 96)).astype(np.float32)])
    np.testing.assert_allclose(result.scales, 1, rtol=1e-6)


def test_inputs_of_zero_are_no_obstacle():
    result = found(np.zeros((4, 32), np.float32), [np.ones((8, 32), np.float32)])
    assert np.isfinite(result.scales).all()


def test_heads_that_share_values_share_scales():
    share = shared_by_heads(4, 2, 3)
    scales = share(np.exp(RANDOM.standard_normal(12)).astype(np.float32)).reshape(2, 2, 3)
    np.testing.assert_array_equal(scales[:, 0], scales[:, 1])
    np.testing.assert_allclose(share(np.full(12, 3, np.float32)), 3, rtol=1e-6)


@pytest.mark.parametrize("name", ["int4", "nvfp4"])
def test_searched_scales_lose_less_by_the_weights_of_columns(name):
    rows = RANDOM.standard_t(4, (32, 96)).astype(np.float32)
    importance = np.exp(2 * RANDOM.standard_normal(96)).astype(np.float32)
    values = {
        "int4": lambda weights: int4_values(rows, weights, group=32),
        "nvfp4": lambda weights: nvfp4_values(rows, weights, tensor_scale=100.0),
    }[name]
    errors = [(np.square(values(weights) - rows) * importance).sum() for weights in (None, importance)]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize("importance", [None, np.ones(96, np.float32)])
def test_stored_numbers_mean_the_values(importance):
    """What the search compares is what a reader makes of the file."""
    rows = RANDOM.standard_normal((8, 96)).astype(np.float32)
    words, scales = int4_groups(rows, importance, group=32)
    scheme = Scheme("compressed-tensors", "int4", 1, 32, is_packed=True)
    read = dequantize(scheme, {"values": words, "scale": scales}, rows.shape)
    np.testing.assert_array_equal(read, int4_values(rows, importance, group=32))
    pairs, codes = nvfp4_groups(rows, importance, tensor_scale=200.0)
    scheme = Scheme("compressed-tensors", "nvfp4", 1, 16, is_packed=True, divides_by_tensor_scale=True)
    parts = {"values": pairs, "scale": codes.view(ml_dtypes.float8_e4m3fn)}
    parts["tensor_scale"] = np.array([[200.0]], np.float32)
    read = dequantize(scheme, parts, rows.shape)
    np.testing.assert_array_equal(read, nvfp4_values(rows, importance, tensor_scale=200.0))
