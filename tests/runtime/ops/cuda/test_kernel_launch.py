"""Launch kernels on stand-ins for the driver and CuPy, and check the launches that reach them: no GPU."""

import ctypes
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from emulated_gpu import imported

from wisp_runtime.errors import EngineFailed, KernelFault, KernelsMissing, ShapeError
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import Absent

POINTER, TENSOR_MAP = 8, 128


class FakeArray:
    """A CuPy array as far as a launch looks at it."""

    def __init__(self, address):
        self.data = SimpleNamespace(ptr=address)


class FakeDriver(ModuleType):
    """``cuda.bindings.driver``: kernels with parameters of ``sizes`` bytes; notes what is launched."""

    def __init__(self, sizes):
        super().__init__("driver")
        self.sizes, self.launched, self.granted, self.code = sizes, [], [], 0
        self.CUlaunchConfig = self.CUlaunchAttributeValue = SimpleNamespace
        self.CUlaunchAttribute = SimpleNamespace
        self.CUlaunchAttributeValue = lambda: SimpleNamespace(clusterDim=SimpleNamespace())
        self.CUlaunchAttributeID = SimpleNamespace(
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="overlap",
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION="cluster",
        )
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
        self.CUstream = int

    def cuFuncGetParamInfo(self, _, i):
        return (0, 0, self.sizes[i]) if i < len(self.sizes) else (1, None, None)

    def cuFuncSetAttribute(self, _, attribute, value):
        self.granted.append((attribute, value))
        return (0,)

    def cuOccupancyMaxActiveClusters(self, _, config):
        return 0, 64 // config.attrs[-1].value.clusterDim.x

    def cuModuleLoadData(self, cubin):
        return (0, cubin.decode()) if cubin else (200, None)

    def cuModuleGetFunction(self, module, name):
        return 0, f"{name.decode()} of {module}"

    def cuLaunchKernelEx(self, config, function, pointers, _):
        addresses = (ctypes.c_void_p * len(self.sizes)).from_address(pointers)
        values = [
            ctypes.string_at(address, size) for address, size in zip(addresses, self.sizes, strict=True)
        ]
        self.launched.append((config, function, values))
        return (self.code,)


@pytest.fixture
def driver(monkeypatch):
    return FakeDriver([POINTER, POINTER, 4, 4, 4, 8])


@pytest.fixture
def kernels(driver):
    """The module ``ops/cuda/device/kernels.py``, imported with the stand-ins."""
    cupy, bindings = SimpleNamespace(ndarray=FakeArray), SimpleNamespace(driver=driver)
    with imported("device.kernels", cupy=cupy, bindings=bindings) as (module,):
        yield module


@pytest.fixture
def kernel(kernels):
    return kernels.Kernel("rmsnorm", "rmsnorm", SimpleNamespace(ptr=0x77), can_overlap=True)


ARGUMENTS = (
    FakeArray(0x1122334455667788),
    None,
    np.int32(-5),
    np.float32(1.5),
    np.uint32(1 << 31),
    np.int64(-2),
)


def test_arguments_arrive_as_the_bytes_of_the_kernels_parameters(kernel, driver):
    kernel.launch((3, 2), 256, *ARGUMENTS)
    ((config, function, values),) = driver.launched
    assert values == [
        (0x1122334455667788).to_bytes(8, "little"),
        bytes(8),
        np.int32(-5).tobytes(),
        np.float32(1.5).tobytes(),
        np.uint32(1 << 31).tobytes(),
        np.int64(-2).tobytes(),
    ]
    assert function == "rmsnorm"
    assert (config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX) == (3, 2, 1, 256)
    assert (config.sharedMemBytes, config.hStream) == (0, 0x77)


def test_a_later_launch_brings_its_own_values(kernel, driver):
    kernel.launch((1,), 32, *ARGUMENTS)
    kernel.launch((1,), 32, None, FakeArray(64), *ARGUMENTS[2:5], np.int64(1 << 40))
    first, second = (values for _, _, values in driver.launched)
    assert first[0] == (0x1122334455667788).to_bytes(
        8, "little"
    )  # what was launched is not changed afterwards
    assert (second[0], second[1]) == (bytes(8), (64).to_bytes(8, "little"))
    assert second[5] == np.int64(1 << 40).tobytes()


def test_structures_and_tensor_maps_go_by_value(kernels, driver):
    class Shape(ctypes.Structure):
        _fields_ = [("rows", ctypes.c_int32), ("stride", ctypes.c_int64)]

    driver.sizes = [TENSOR_MAP, ctypes.sizeof(Shape), POINTER]
    kernel = kernels.Kernel("linear", "linear", SimpleNamespace(ptr=1), can_overlap=True)
    for rows in (7, 8):
        tensor_map, shape = (ctypes.c_uint64 * 16)(*range(rows, rows + 16)), Shape(rows, -1)
        kernel.launch((1,), 32, tensor_map, shape, FakeArray(rows))
        assert driver.launched[-1][2] == [bytes(tensor_map), bytes(shape), rows.to_bytes(8, "little")]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (ARGUMENTS[:5], "takes 6 arguments, got 5"),
        ((*ARGUMENTS[:2], 5, *ARGUMENTS[3:]), "parameter 2 has 4 bytes, got int 5"),  # a bare int has no type
        ((*ARGUMENTS[:2], np.int64(5), *ARGUMENTS[3:]), "parameter 2 has 4 bytes, got int64"),
        ((*ARGUMENTS[:3], 1.5, *ARGUMENTS[4:]), "parameter 3 has 4 bytes, got float 1.5"),
        ((np.zeros(3), *ARGUMENTS[1:]), "parameter 0 has 8 bytes, got ndarray"),  # of the host
        ((*ARGUMENTS[:2], FakeArray(0), *ARGUMENTS[3:]), "parameter 2 has 4 bytes, got FakeArray"),
    ],
)
def test_the_first_launch_refuses_arguments_that_the_kernel_cannot_take(kernel, driver, args, says):
    with pytest.raises(ShapeError, match=says):
        kernel.launch((1,), 32, *args)
    assert driver.launched == []


@pytest.mark.parametrize("args", [ARGUMENTS[:5], (*ARGUMENTS[:2], "x", *ARGUMENTS[3:])])
def test_a_later_launch_with_what_cannot_be_packed_is_refused_too(kernel, driver, args):
    kernel.launch((1,), 32, *ARGUMENTS)
    with pytest.raises(ShapeError, match="rmsnorm"):
        kernel.launch((1,), 32, *args)
    assert len(driver.launched) == 1


def attributes(config):
    return {attribute.id: attribute.value for attribute in config.attrs}


@pytest.mark.parametrize(("can_overlap", "cluster"), [(True, 1), (True, 4), (False, 1)])
def test_a_launch_asks_for_overlap_and_clusters_where_there_are(kernels, driver, can_overlap, cluster):
    kernel = kernels.Kernel("k", "k", SimpleNamespace(ptr=1), can_overlap=can_overlap)
    kernel.launch((8,), 32, *ARGUMENTS, cluster=cluster)
    config = driver.launched[0][0]
    launch_attributes = attributes(config)
    assert config.numAttrs == len(launch_attributes)
    assert ("overlap" in launch_attributes) == can_overlap
    assert not can_overlap or launch_attributes["overlap"].programmaticStreamSerializationAllowed == 1
    assert ("cluster" in launch_attributes) == (cluster > 1)
    if cluster > 1:
        size = launch_attributes["cluster"].clusterDim
        assert (size.x, size.y, size.z) == (cluster, 1, 1)


def test_configurations_are_made_once_and_shared_memory_is_raised_as_it_grows(kernel, driver):
    for shared_bytes in (1000, 100_000, 100_000, 80_000, 200_000):
        kernel.launch((1,), 32, *ARGUMENTS, shared_bytes=shared_bytes)
    assert driver.granted == [(8, 100_000), (8, 200_000)]
    configs = [config for config, _, _ in driver.launched]
    assert configs[1] is configs[2]
    assert len({id(config) for config in configs}) == 4


def test_clusters_at_once_are_the_drivers_count(kernel):
    assert kernel.clusters_at_once(256, shared_bytes=1000, cluster=4) == 16


@pytest.mark.parametrize(("code", "failure"), [(1, EngineFailed), (700, KernelFault)])
def test_a_refused_launch_names_the_kernel_and_its_launch(kernel, driver, code, failure):
    driver.code = code
    with pytest.raises(failure, match=r"launching rmsnorm with grid \(3,\), block 64"):
        kernel.launch((3,), 64, *ARGUMENTS)


@pytest.fixture
def kernel_set(kernels, tmp_path):
    """Make the kernel set of a hardware; cubins are in ``tmp_path``."""
    catalogue = Catalogue()

    def make(arch="sm_90a"):
        return kernels.KernelSet(
            catalogue, catalogue.architectures()[arch], arch, tmp_path, SimpleNamespace(ptr=1)
        )

    return make


def cubin(folder: Path, op: str, arch="sm_90a", holds=b"cubin"):
    catalogue = Catalogue()
    source = catalogue.resolve(catalogue.architectures()[arch].name)[op]
    (folder / catalogue.cubin_name(source, arch)).write_bytes(holds)


def test_a_kernel_is_loaded_once(kernel_set, tmp_path):
    cubin(tmp_path, "rmsnorm")
    chosen_kernels = kernel_set()
    assert chosen_kernels.name == "hopper/common/bf16"
    assert chosen_kernels.get("rmsnorm") is chosen_kernels.get("rmsnorm", "rmsnorm")
    assert chosen_kernels.get("rmsnorm", "rmsnorm_2").name == "rmsnorm_2"


@pytest.mark.parametrize(
    ("arch", "op", "entry", "says"),
    [
        (
            "sm_90a",
            "add_rmsnorm",
            None,
            r"not compiled for sm_90a.*`wisp-runtime kernels build --arch sm_90a`",
        ),
        ("sm_90a", "rmsnrm", None, r"there is no op rmsnrm; hopper/common/bf16 has activate"),
        (
            "sm_90a",
            "rmsnorm",
            "rmsnorm_3",
            r"elementwise/rmsnorm has no kernel rmsnorm_3; it has rmsnorm, rmsnorm_2",
        ),
        ("sm_89", "linear", "linear_mma_n8", r"not compiled for sm_89.*`.* kernels build --arch sm_89`"),
    ],
)
def test_a_kernel_that_is_not_there_is_missing_with_a_remedy(kernel_set, tmp_path, arch, op, entry, says):
    cubin(tmp_path, "rmsnorm", arch)
    with pytest.raises(KernelsMissing, match=says):
        kernel_set(arch).get(op, entry)


def test_an_absent_kernel_is_missing_with_the_reason(kernel_set):
    chosen_kernels = kernel_set("sm_89")
    chosen_kernels.chosen["linear"] = Absent("linear", "it is not written. Use an H100.")
    with pytest.raises(KernelsMissing, match=r"^ada/common/bf16 has no kernel for linear: .*Use an H100"):
        chosen_kernels.get("linear")
    assert not chosen_kernels.has("linear")


def test_a_damaged_cubin_is_named(kernel_set, tmp_path):
    cubin(tmp_path, "rmsnorm", holds=b"")
    with pytest.raises(KernelsMissing, match=r"rmsnorm-sm_90a-\w+\.cubin: the file is no cubin"):
        kernel_set().get("rmsnorm")


def test_preload_brings_every_kernel_of_an_op(kernel_set, tmp_path):
    cubin(tmp_path, "rmsnorm")
    chosen_kernels = kernel_set()
    assert chosen_kernels.preload("rmsnorm") == 6
    for path in tmp_path.iterdir():
        path.unlink()
    assert chosen_kernels.get("rmsnorm", "rmsnorm_4").name == "rmsnorm_4"


def test_require_asks_for_all_before_anything_is_loaded(kernel_set, tmp_path):
    cubin(tmp_path, "rmsnorm")
    chosen_kernels = kernel_set()
    assert (
        chosen_kernels.has("rmsnorm"),
        chosen_kernels.has("rope_write_kv"),
        chosen_kernels.has("rmsnrm"),
    ) == (True, True, False)
    chosen_kernels.require("rmsnorm")
    with pytest.raises(KernelsMissing, match="rope_write_kv"):
        chosen_kernels.require("rmsnorm", "rope_write_kv")


def test_one_set_has_kernels_of_several_weight_formats(kernel_set, tmp_path):
    cubin(tmp_path, "rmsnorm")
    chosen_kernels = kernel_set()
    assert chosen_kernels.has("linear")
    assert not chosen_kernels.has("linear", "no_format")
    assert chosen_kernels.get("rmsnorm", weight_format="no_format").name == "rmsnorm"
    with pytest.raises(
        KernelsMissing, match=r"^hopper/common/no_format has no kernel for linear: it reads no"
    ):
        chosen_kernels.require("linear", weight_format="no_format")
