"""Copies to the host keep the device's stream current; on a stand-in for CuPy with its stack of streams."""

from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
import pytest
from emulated_gpu import imported


class Streams:
    """CuPy's current stream: ``use`` sets it, ``with`` and each strided copy end at the top of the stack."""

    def __init__(self):
        self.stack, self.current = ["default"], "default"

    def stream(self, name):
        stream = MagicMock(ptr=1)
        stream.__enter__.side_effect = lambda: self.push(name)
        stream.use.side_effect = lambda: setattr(self, "current", name)
        return stream

    def push(self, name):
        self.stack.append(name)
        self.current = name

    def asnumpy(self, array):
        if not array.flags.c_contiguous:
            self.push(self.current)
            self.stack.pop()
            self.current = self.stack[-1]
        return np.array(array)


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def modules(monkeypatch, streams):
    """``device/gpu.py`` and ``device/arrays.py``, imported with the stand-ins."""
    cupy = MagicMock(asnumpy=streams.asnumpy, ascontiguousarray=np.ascontiguousarray, ndarray=np.ndarray)
    cupy.cuda.Stream.side_effect = lambda **_: streams.stream("ours")
    with imported("device.gpu", "device.arrays", cupy=cupy) as (gpu, arrays):
        monkeypatch.setattr(gpu, "capability_of", lambda _: (9, 0))
        monkeypatch.setattr(gpu, "ok", MagicMock())
        yield gpu, arrays


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_strided_arrays_are_copied_on_the_stream_that_was_current(modules, streams, dtype):
    streams.current = "used"
    array = np.arange(24).reshape(4, 6).astype(dtype)[:, 2:5]
    copied = modules[1].to_host(array)
    assert copied.dtype == dtype
    assert np.array_equal(copied, array)
    assert streams.current == "used"


def test_the_stream_of_an_open_gpu_outlasts_strided_copies_of_others(modules, streams):
    modules[0].open_gpu(0)
    assert streams.current == "ours"
    streams.asnumpy(np.zeros((4, 6))[:, 2:5])
    assert streams.current == "ours"
