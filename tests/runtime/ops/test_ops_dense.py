"""Norms, matmul, RoPE and activation against the formula in float64, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from wisp_runtime.errors import ShapeError
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.blas import has_small_gemms, keep_blas_single_threaded
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cpu.threads import Work, Workers

RANDOM = np.random.default_rng(2)
OPS = CpuOps(threads=1)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def empty_matrix(ops, outputs, inputs):
    return ops.matrix(np.zeros(ops.matrix_elements(outputs, inputs), np.float32), outputs, inputs)


def packed(ops: CpuOps, rows: np.ndarray):
    """Store ``rows`` ``[out, in]`` in the layout of the backend."""
    weight = empty_matrix(ops, *rows.shape)
    ops.store_rows(weight, 0, rows)
    return weight


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 8), (31, 5), (32, 64), (33, 64), (960, 576), (3000, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_is_the_matmul_with_every_row(threads, tokens, outputs, inputs, has_bias):
    ops, x, rows = CpuOps(threads), random(tokens, inputs), random(outputs, inputs)
    bias = random(outputs) if has_bias else None
    expect = x.astype(np.float64) @ rows.astype(np.float64).T + (bias if has_bias else 0)
    actual = ops.linear(x, packed(ops, rows), bias)
    assert actual.shape == (tokens, outputs)
    # float32 sums of up to 576 terms of size 1: about 1e-5 away
    np.testing.assert_allclose(actual, expect, atol=2e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "pairs_rows", [False, True]
)  # which is faster depends on the machine; both are right
def test_a_lone_row_may_be_computed_twice_and_comes_back_once(threads, has_bias, pairs_rows):
    x, rows, bias = random(1, 64), random(3000, 64), random(3000) if has_bias else None
    workers = Workers(threads) if threads > 1 else None
    actual = reference.linear(x, packed(OPS, rows), bias, workers=workers, pairs_rows=pairs_rows)
    assert actual.shape == (1, 3000)
    np.testing.assert_allclose(actual, x @ rows.T + (bias if has_bias else 0), atol=2e-4)


@pytest.mark.parametrize("boundaries", [(0, 96), (0, 32, 96), (0, 5, 37, 96), (0, 64, 70, 96)])
def test_a_matrix_stored_in_chunks_equals_the_whole_one(boundaries):
    rows = random(96, 24)
    weight = empty_matrix(OPS, 96, 24)
    for first, last in pairwise(boundaries):
        OPS.store_rows(weight, first, rows[first:last])
    np.testing.assert_array_equal(weight.tiles, packed(OPS, rows).tiles)
    np.testing.assert_array_equal(OPS.embedding(np.arange(96), weight), rows)


@pytest.mark.parametrize("shape", [(1, 576), (5, 64), (3, 4, 16)])
def test_rmsnorm_is_its_formula(shape):
    x, weight = random(*shape), random(shape[-1])
    exact = x.astype(np.float64)
    expect = exact / np.sqrt((exact**2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(OPS.rmsnorm(x, weight, eps=1e-5), expect, rtol=2e-6)


def test_add_rmsnorm_sums_into_the_residual_first():
    x, residual, weight = random(3, 64), random(3, 64), random(64)
    expect = x + residual
    actual = OPS.add_rmsnorm(x, residual, weight, eps=1e-6)
    np.testing.assert_array_equal(residual, expect)
    np.testing.assert_array_equal(actual, OPS.rmsnorm(expect, weight, eps=1e-6))


def test_add_rmsnorm_of_some_rows_sums_into_those_and_leaves_the_others():
    residual, weight, rows = random(6, 64), random(64), np.array([1, 2, 5])
    expect = residual.copy()
    for x in random(2, 3, 64):  # what the second adds comes on top of what the first left
        expect[rows] += x
        actual = OPS.add_rmsnorm(x, residual, weight, eps=1e-6, rows=rows)
        np.testing.assert_array_equal(residual, expect)
        np.testing.assert_array_equal(actual, OPS.rmsnorm(expect[rows], weight, eps=1e-6))


@pytest.mark.parametrize("rows", [[], [3], [0, 2, 4], [4, 4, 1]])
def test_rows_are_gathered_in_the_order_of_their_indices(rows):
    x = random(5, 16)
    actual = OPS.gather_rows(x[:, :12], np.array(rows, np.int64))
    assert actual.flags.c_contiguous
    np.testing.assert_array_equal(actual, np.array([x[row, :12] for row in rows]).reshape(-1, 12))


@pytest.mark.parametrize("rotated", [8, 16])
def test_rope_rotates_pairs_as_complex_numbers_and_leaves_the_rest(rotated):
    x, angles = random(5, 3, 16), random(5, rotated // 2)
    before = x.copy()
    OPS.rope(x, np.cos(angles), np.sin(angles))
    half = rotated // 2
    pairs = before[..., :half] + 1j * before[..., half:rotated]
    rotated_pairs = pairs * np.exp(1j * angles.astype(np.float64))[:, None]
    np.testing.assert_allclose(x[..., :half], rotated_pairs.real, atol=1e-6)
    np.testing.assert_allclose(x[..., half:rotated], rotated_pairs.imag, atol=1e-6)
    np.testing.assert_array_equal(x[..., rotated:], before[..., rotated:])


def test_silu_mul_is_its_formula_also_far_from_zero():
    gate_up = np.concatenate([np.array([[-200.0, -90.0, -1.0, 0.0, 3.0, 200.0]]), random(1, 6)], axis=1)
    gate, up = gate_up[:, :6].astype(np.float64), gate_up[:, 6:].astype(np.float64)
    with np.errstate(over="raise", invalid="raise"):  # no overflow on the way
        actual = OPS.silu_mul(gate_up.astype(np.float32))
    np.testing.assert_allclose(actual, gate / (1 + np.exp(-gate)) * up, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_row(bad):
    x, rows = random(4, 64), random(40, 64)
    x[2, 5] = bad
    with np.errstate(invalid="ignore"):
        results = OPS.linear(x, packed(OPS, rows))
        for actual in (results, OPS.rmsnorm(x, random(64), eps=1e-5), OPS.silu_mul(results)):
            assert not np.isfinite(actual[2]).all()
            assert np.isfinite(actual[[0, 1, 3]]).all()


def refused_calls():
    weight, x = packed(OPS, random(32, 16)), random(2, 16)
    heads, angles = random(2, 3, 16), random(2, 8)
    yield "linear: columns", lambda: OPS.linear(random(2, 15), weight)
    yield "linear: rank", lambda: OPS.linear(random(16), weight)
    yield "linear: bias", lambda: OPS.linear(x, weight, random(31))
    yield "store_rows: past the end", lambda: OPS.store_rows(weight, 31, random(2, 16))
    yield "store_rows: columns", lambda: OPS.store_rows(weight, 0, random(2, 17))
    yield "store_vector: past the end", lambda: OPS.store_vector(random(4), 3, random(2))
    yield "matrix: storage", lambda: OPS.matrix(np.zeros(10, np.float32), 32, 16)
    yield "embedding: token", lambda: OPS.embedding(np.array([0, 32]), weight)
    yield "embedding: negative", lambda: OPS.embedding(np.array([-1]), weight)
    yield "rmsnorm: weight", lambda: OPS.rmsnorm(x, random(15), eps=1e-5)
    yield "add_rmsnorm: residual", lambda: OPS.add_rmsnorm(x, random(3, 16), random(16), eps=1e-5)
    some = np.array([0, 2])
    yield (
        "add_rmsnorm: a row for all",
        lambda: OPS.add_rmsnorm(random(3, 16), random(3, 16), random(16), eps=1e-5, rows=some),
    )
    yield (
        "add_rmsnorm: row",
        lambda: OPS.add_rmsnorm(x, random(2, 16), random(16), eps=1e-5, rows=some),
    )
    yield (
        "add_rmsnorm: columns",
        lambda: OPS.add_rmsnorm(x, random(3, 15), random(16), eps=1e-5, rows=some),
    )
    yield (
        "add_rmsnorm: a row twice",
        lambda: OPS.add_rmsnorm(random(2, 16), random(3, 16), random(16), eps=1e-5, rows=np.array([1, 1])),
    )
    yield "gather_rows: rank", lambda: OPS.gather_rows(random(3, 4, 8), some)
    yield "gather_rows: rows", lambda: OPS.gather_rows(x, some[None])
    yield "gather_rows: past the end", lambda: OPS.gather_rows(x, some)
    yield "gather_rows: negative", lambda: OPS.gather_rows(x, np.array([-1]))
    yield "rope: rows", lambda: OPS.rope(heads, angles[:1], angles[:1])
    yield "rope: wider than a head", lambda: OPS.rope(heads, random(2, 9), random(2, 9))
    yield "rope: sines", lambda: OPS.rope(heads, angles, random(2, 7))
    yield "silu_mul: odd", lambda: OPS.silu_mul(random(2, 7))


@pytest.mark.parametrize(("_name", "call"), list(refused_calls()), ids=[name for name, _ in refused_calls()])
def test_arrays_that_do_not_fit_are_refused(_name, call):
    with pytest.raises(ShapeError):
        call()


@pytest.mark.parametrize(("seconds", "threads"), [(1e-6, 1), (130e-6, 2), (1.0, 4)])
def test_only_work_that_is_worth_it_is_shared_and_nothing_is_left_out(seconds, threads):
    done = []
    work = Work(tiles=100, multiplications=int(seconds * 40e9), bytes_read=0)
    Workers(4).split(work, lambda part: done.append(part))
    assert len(done) == threads
    assert sorted(tile for part in done for tile in range(100)[part]) == list(range(100))


def test_a_failure_in_a_thread_reaches_the_caller():
    def fail(part):
        if part.start:
            raise ShapeError("in a thread")

    with pytest.raises(ShapeError, match="in a thread"):
        Workers(2).split(Work(10, 10**9, 0), fail)


def test_the_weights_begin_at_a_multiple_of_64_bytes():
    assert all(OPS.weight_arena(size).ctypes.data % 64 == 0 for size in (1, 100, 10**6))


def test_the_blas_of_numpy_is_found_with_kernels_for_this_processor():
    assert keep_blas_single_threaded()
    # One way only: OpenBLAS runs some processors with AVX-512, AMD's for one, on kernels without it.
    assert not has_small_gemms() or "avx512vl" in Path("/proc/cpuinfo").read_text()
