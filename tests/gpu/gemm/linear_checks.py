"""Checks of every GEMM implementation, at the sizes that its tests pass."""

import cupy as cp
import numpy as np
from linear_cases import (
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

from wisp_runtime.ops.cuda.device.arrays import BF16


def check_linear(device, linear, outputs, inputs, tokens):
    case = Case(device, outputs, inputs)
    check_each(case, linear, case.matmul, (case.outputs, BF16, "test.y"), tokens, SUMS)


def check_swiglu(device, linear, half, inputs, tokens):
    case = Case(device, 2 * half, inputs, "gate_up_interleaved")
    check_each(case, linear.swiglu, case.gated, (case.outputs // 2, BF16, "test.y"), tokens, SIGMOID)


def check_logits(device, linear, vocab, inputs, tokens):
    case = Case(device, vocab, inputs)
    out = case.outputs, np.float32, "test.logits"
    check_each(case, linear.logits, case.matmul, out, tokens, SUMS)


def check_each(case, multiply, expected, out, tokens, absolute):
    """At each number of ``tokens``; ``out`` is the columns, the dtype and the buffer of the result."""
    columns, dtype, name = out
    for count in tokens:
        x, dense = case.x(count)
        spare = spare_rows(case.device, name, count, columns, dtype)
        y = multiply(x, case.weight, out_name=name)
        assert (y.shape, y.dtype) == ((count, columns), dtype), (y.shape, y.dtype)
        check(y, expected(dense), absolute)
        assert bool((spare == 0xFF).all()), "wrote behind the last row"
        check_stable(lambda x=x: multiply(x, case.weight, out_name=name), y)


def check_bias(device, linear, shapes, tokens):
    """Plain GEMMs of ``shapes``, each out and in, and a gated one."""
    for outputs, inputs in shapes:
        case = Case(device, outputs, inputs, has_bias=True)
        x, dense = case.x(tokens)
        check(linear(x, case.weight, case.bias, out_name="test.y"), case.matmul(dense), SUMS)
    case = Case(device, 2 * 4864, 896, "gate_up_interleaved", has_bias=True)
    x, dense = case.x(tokens)
    check(linear.swiglu(x, case.weight, case.bias, out_name="test.y"), case.gated(dense), SIGMOID)


def check_rows_apart(device, linear, tokens):
    case = Case(device, 576, 576)
    x, dense = case.x(tokens, gap=1152)
    check(linear(x, case.weight, out_name="test.y"), case.matmul(dense), SUMS)


def check_end_of_memory(device, linear, inputs):
    case = Case(device, 576, inputs)
    bits = random_bits((300, case.weight.inputs), 9)
    memory = cp.cuda.Memory(bits.nbytes)  # beside CuPy's pool: nothing of ours behind it
    x = cp.ndarray(bits.shape, np.uint16, cp.cuda.MemoryPointer(memory, 0))
    x[:] = bits
    check(linear(x.view(BF16), case.weight, out_name="test.y"), case.matmul(widened(bits)), SUMS)


def check_nan_and_infinity(device, linear, tokens):
    case = Case(device, 576, 576)
    x, dense = case.x(tokens)
    bits = x.view(np.uint16)
    bits[3, 5], bits[9, -6] = NAN, np.uint16(0x7F80)
    result = linear(x, case.weight, out_name="test.y")
    y = cp.asnumpy(widened(result.view(np.uint16)))
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[9]).any()
    others = [row for row in range(tokens) if row not in (3, 9)]
    assert not cp.asnumpy(wrongs(result, case.matmul(dense), SUMS))[others].any()


def check_no_tokens(device, linear):
    case = Case(device, 72, 136)
    x, _ = case.x(1)
    assert linear(x[:0], case.weight, out_name="test.y").shape == (0, 72)


def check_chain(device, linear):
    """A chain as in a layer: each reads the previous result, and all share partial sums and counters."""
    up, down = Case(device, *CHAIN), Case(device, *CHAIN[::-1])
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
