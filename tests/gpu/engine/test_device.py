"""The ground the kernels stand on: facts, arrays, scratch memory, launches, and what a fault ends in."""

import subprocess
import sys

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import GpuOutOfMemory, GpuUnavailable, ShapeError, WorkspaceExhausted  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import (  # noqa: E402
    BF16,
    empty,
    full_nan,
    to_device,
    to_host,
    to_host_float32,
    zeros,
)
from wisp_runtime.ops.cuda.device.catalogue import Catalogue  # noqa: E402
from wisp_runtime.ops.cuda.device.gpu import open_gpu, tensor_map_2d, translate  # noqa: E402
from wisp_runtime.ops.cuda.device.kernels import KernelSet  # noqa: E402
from wisp_runtime.ops.cuda.device.manifest import Source  # noqa: E402
from wisp_runtime.ops.cuda.device.workspace import Workspace  # noqa: E402


def test_the_gpu_is_what_its_hardware_file_says(device):
    catalogue = Catalogue()
    hardware, arch = catalogue.find(device.capability)
    assert device.arch == arch
    assert device.shared_bytes == hardware.architectures[arch].shared_bytes
    assert device.sm_count in hardware.sms.values() or device.sm_count == 114  # the PCIe H100
    assert device.free_bytes() > 1 << 30


def test_every_kernel_of_the_set_loads(device):
    for op, source in device.kernels.chosen.items():
        if isinstance(source, Source):
            for entry in source.entries:
                assert device.kernels.get(op, entry).name == entry


def test_a_gpu_that_is_not_there_is_unavailable():
    with pytest.raises(GpuUnavailable, match="looking at GPU 99: this process sees no such NVIDIA GPU"):
        open_gpu(99)


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32), np.dtype(np.int32)])
def test_arrays_go_to_the_gpu_and_back(device, random, dtype):
    host = (random.standard_normal((33, 40)) * 100).astype(dtype)
    there = to_device(host)
    assert there.dtype == dtype
    assert np.array_equal(to_host(there), host)
    assert np.array_equal(to_host(there[5:20]), host[5:20])
    assert np.array_equal(to_host(there[:, 8:24]), host[:, 8:24])  # rows apart
    assert np.array_equal(to_host_float32(there[::2]), host[::2].astype(np.float32))
    assert there[5:, 8:].data.ptr - there.data.ptr == (5 * 40 + 8) * dtype.itemsize


@pytest.mark.parametrize("copy", [to_host, cp.asnumpy])
def test_copies_of_strided_arrays_keep_the_stream(device, copy):
    copy(zeros((4, 6), np.float32)[:, 2:5])  # CuPy makes a stream current for it, and another after it
    assert cp.cuda.get_current_stream().ptr == device.stream.ptr


def test_float32_is_rounded_to_bf16_on_the_host(device, random):
    host = random.standard_normal((3, 7)).astype(np.float32)
    assert np.array_equal(to_host(to_device(host, BF16)), host.astype(BF16))


def test_memory_that_must_not_be_read_is_nan(device):
    assert np.isnan(to_host_float32(full_nan((9, 5), BF16))).all()
    assert np.isnan(to_host(full_nan((9, 5), np.float32))).all()
    assert (to_host(full_nan((9,), np.int32)) == -1).all()
    assert (to_host(zeros((9, 5), BF16)) == 0).all()
    assert empty((0, 5), BF16).shape == (0, 5)


def test_a_name_is_one_memory_that_grows_until_the_seal(device):
    workspace = Workspace()
    small = workspace.array("x", (4, 8), BF16)
    assert workspace.array("x", (4, 8), BF16) is small
    assert workspace.array("x", (2, 8), np.float32).data.ptr == small.data.ptr
    assert workspace.array("y", (4, 8), BF16).data.ptr != small.data.ptr
    workspace.array("x", (1000, 8), BF16)
    assert workspace.bytes == sum(row["bytes"] for row in workspace.report())
    assert workspace.report()[0]["name"] == "x"
    workspace.seal()
    assert workspace.array("x", (999, 8), BF16).shape == (999, 8)
    with pytest.raises(WorkspaceExhausted, match="buffer x has 16128 bytes, a step needs 32000"):
        workspace.array("x", (1000, 8), np.float32)
    with pytest.raises(WorkspaceExhausted, match="buffer z has 0 bytes"):
        workspace.array("z", (1,), BF16)


def test_counters_are_zeroed_once(device):
    workspace = Workspace()
    counters = workspace.zeroed("counters", (5,), np.int32)
    assert to_host(counters).tolist() == [0] * 5
    counters.set(np.arange(5, dtype=np.int32))
    assert to_host(workspace.zeroed("counters", (3,), np.int32)).tolist() == [0, 1, 2]
    assert to_host(workspace.zeroed("counters", (500,), np.int32)).sum() == 0  # a new buffer


def launch_embedding(device, tokens, out):
    table = to_device(np.zeros((1, 4096), BF16))
    kernel = device.kernels.get("embedding")
    kernel.launch((len(tokens), 1, 1), 128, tokens, None, table, out, np.int32(0), np.int32(64), np.int32(64))


def test_a_launch_is_ordered_with_copies_and_can_be_captured(device):
    tokens, out = to_device(np.arange(6, dtype=np.int32)), full_nan((6, 64), np.float32)
    launch_embedding(device, tokens, out)
    assert (to_host(out) == 0).all()
    out.data.memset_async(0xFF, out.nbytes)
    device.synchronize()
    table = to_device(np.ones((1, 4096), BF16))
    kernel = device.kernels.get("embedding")
    device.stream.begin_capture()
    for _ in range(3):
        kernel.launch((6, 1, 1), 128, tokens, None, table, out, np.int32(0), np.int32(64), np.int32(64))
    graph = device.stream.end_capture()
    assert np.isnan(to_host(out)).all()  # captured, not run
    graph.launch(device.stream)
    assert (to_host(out) == 1).all()


def test_an_argument_of_the_wrong_size_is_refused_before_the_launch(device):
    hardware, arch = Catalogue().find(device.capability)
    kernels = KernelSet(Catalogue(), hardware, arch, device.kernels.folder, device.stream)
    kernel = kernels.get("rmsnorm", "rmsnorm_4")  # of a set of our own: nobody has launched it
    with pytest.raises(ShapeError, match=r"rmsnorm_4: parameter 3 has 4 bytes, got int 64"):
        kernel.launch((1,), 32, *[full_nan((64,), BF16)] * 3, 64, np.float32(1e-5), np.float32(0))


def test_tensor_maps_describe_what_the_copy_engine_can_copy(device):
    array = full_nan((100, 256), BF16)
    assert bytes(tensor_map_2d(array, 64, 64)) != bytes(tensor_map_2d(array[:, 128:], 64, 64))
    for wrong, box in [(array[:, 4:], (64, 64)), (array.T, (64, 64)), (array, (64, 128)), (array, (512, 64))]:
        with pytest.raises(ShapeError, match="a tensor map"):
            tensor_map_2d(wrong, *box)


def test_memory_that_is_not_there_is_named(device):
    says = "loading weights: the GPU has not enough free memory"
    with pytest.raises(GpuOutOfMemory, match=says), translate("loading weights"):
        cp.empty(1 << 50, np.uint8)


FAULT = """
import numpy as np
from wisp_runtime.errors import KernelFault
from wisp_runtime.ops.cuda.device.arrays import to_device
from wisp_runtime.ops.cuda.device.gpu import open_gpu

device = open_gpu()
kernel = device.kernels.get("embedding")
wrong = np.uint64(4096)
kernel.launch((1, 1, 1), 128, wrong, None, wrong, wrong, np.int32(0), np.int32(64), np.int32(64))
try:
    device.synchronize()
except KernelFault as error:
    print("first:", error.message)
try:
    to_device(np.zeros(3, np.float32))
    device.synchronize()
except Exception as error:
    print("later:", type(error).__name__)
"""


def test_a_kernel_that_reads_a_wrong_address_ends_the_process_with_a_name(device):
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=120)
    assert (
        "first: waiting for GPU 0: a kernel, this or one before it, read or wrote an address" in done.stdout
    ), done
    assert "later: " in done.stdout  # nothing works on this context any more
