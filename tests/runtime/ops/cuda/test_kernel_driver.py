"""The driver's errors become failures with a name and a remedy."""

import pytest

from wisp_runtime.errors import (
    DeviceFailed,
    EngineFailed,
    GpuOutOfMemory,
    GpuUnavailable,
    KernelFault,
    KernelsMissing,
)
from wisp_runtime.ops.cuda.device.driver import STICKY, code_of, failure_of, ok, translate


@pytest.mark.parametrize(
    ("code", "failure", "says"),
    [
        (2, GpuOutOfMemory, "lower --memory-fraction"),
        (100, GpuUnavailable, "ask for a GPU"),
        (101, GpuUnavailable, "CUDA_VISIBLE_DEVICES"),
        (35, GpuUnavailable, "driver 580 or newer"),
        (46, GpuUnavailable, "another process holds the GPU"),
        (802, GpuUnavailable, "fabric manager"),
        (803, GpuUnavailable, "Restart the node"),
        (209, KernelsMissing, "kernels build"),
        (700, KernelFault, "an address that is not its own"),
        (716, KernelFault, "not aligned"),
        (214, DeviceFailed, "ECC"),
        (999, DeviceFailed, "dmesg"),
        (1, EngineFailed, "bug of ours"),  # invalid value: an argument of ours is wrong
    ],
)
def test_a_code_has_a_failure_that_says_what_to_do(code, failure, says):
    raised = failure_of(code, "launching rmsnorm")
    assert type(raised) is failure
    assert raised.message.startswith("launching rmsnorm: ")
    assert says in raised.message
    assert raised.details == {"code": code}


def test_after_a_sticky_error_the_process_has_no_use():
    assert {700, 716, 719, 214, 999} <= STICKY
    assert {type(failure_of(code, "")) for code in STICKY} == {KernelFault, DeviceFailed}
    assert not STICKY & {1, 2, 100}


def cupy_error(name, module="cupy_backends.cuda.api.runtime", **facts):
    kind = type(name, (Exception,), {"__module__": module})
    error = kind()
    error.__dict__.update(facts)
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cupy_error("CUDARuntimeError", status=700), 700),
        (cupy_error("CUDADriverError", "cupy_backends.cuda.api.driver", status=2), 2),
        (cupy_error("OutOfMemoryError", "cupy.cuda.memory"), 2),
        (cupy_error("OutOfMemoryError", "torch.cuda"), None),
        (cupy_error("CompileException", "cupy.cuda.compiler", status=3), None),
        (MemoryError(), None),  # the host's memory
        (ValueError("x"), None),
    ],
)
def test_only_cupys_errors_of_the_driver_are_translated(error, code):
    assert code_of(error) == code
    with (
        pytest.raises(type(error) if code is None else type(failure_of(code, ""))) as caught,
        translate("it"),
    ):
        raise error
    assert code is None or caught.value.__cause__ is error


def test_a_result_of_the_bindings_is_unpacked():
    assert ok((0,), "x") == ()
    assert ok((0, 7), "x") == 7
    assert ok((0, 7, 8), "x") == (7, 8)
    with pytest.raises(KernelFault, match=r"^copying: "):
        ok((700, None), "copying")
