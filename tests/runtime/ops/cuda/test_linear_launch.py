"""Kernel arguments of a GEMM; on a fake GPU and CuPy."""

import importlib
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from emulated_gpu import imported

from wisp_plan.memory.buffers.gemm import BLOCK_M, block_n
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.errors import ShapeError

BUFFER_BYTES = 1 << 20


class FakeArray:
    """The attributes of a CuPy array that a GEMM reads."""

    def __init__(self, shape, dtype, data, strides=None):
        self.shape, self.dtype, self.data = shape, dtype, data
        self.strides = strides or (shape[-1] * dtype.itemsize, dtype.itemsize)[-len(shape) :]
        self.ndim, self.size = len(shape), int(np.prod(shape))

    def __len__(self):
        return self.shape[0]


def memory(address):
    return SimpleNamespace(ptr=address, mem=SimpleNamespace(ptr=address, size=BUFFER_BYTES))


class FakeWorkspace:
    def __init__(self):
        self.views = {}

    def array(self, name, shape, dtype):
        key = name, shape, dtype
        if key not in self.views:
            self.views[key] = FakeArray(shape, dtype, memory(sum(name.encode()) << 20))
        return self.views[key]

    def view(self, buffer):
        return self.array(buffer.name, buffer.shape, np.dtype(buffer.dtype))

    def reserve(self, buffers):
        assert [self.view(buffer) for buffer in buffers]


class FakeKernel:
    def __init__(self, launched, entry):
        self.launched, self.entry = launched, entry

    def launch(self, grid, block, tokens, arguments, *more, shared_bytes, cluster):
        assert shared_bytes <= 232448
        copied = [type(each).from_buffer_copy(each) for each in (*more, arguments)]
        self.launched.append((self.entry, grid[0] if len(grid) == 1 else grid, cluster, tokens, *copied))


def make_device(launched):
    kernels = SimpleNamespace(get=lambda op, entry, held="": FakeKernel(launched, held + entry))
    return SimpleNamespace(kernels=kernels, workspace=FakeWorkspace(), sm_count=132, shared_bytes=232448)


@pytest.fixture
def linear(monkeypatch):
    """The module ``ops/cuda/gemm/linear.py``, imported with the stand-ins; notes maps and launches."""
    names = "gemm.linear", "gemm.token_maps"
    with imported(*names, cupy=MagicMock(ndarray=FakeArray)) as (module, token_maps):
        module.maps = []

        def tensor_map(array, *box):
            module.maps.append((array.shape, box))
            return box

        monkeypatch.setattr(token_maps, "tensor_map_2d", tensor_map)
        yield module


@pytest.fixture
def gemm(linear):
    """A ``Linear``, what it launched, and makers of tokens and matrices."""
    launched = []
    device = make_device(launched)

    def tokens(count, inputs=512):
        return FakeArray((count, inputs), linear.BF16, memory(1 << 40))

    def matrix(address, outputs=512, inputs=512):
        return linear.PackedMatrix(
            FakeArray((outputs * inputs,), linear.BF16, memory(address)), outputs, inputs
        )

    return SimpleNamespace(linear=linear.Linear(device), launched=launched, tokens=tokens, matrix=matrix)


def test_matrices_of_a_shape_share_a_launch_but_not_their_pointers(gemm):
    first, second = gemm.matrix(1 << 30), gemm.matrix(2 << 30)
    bias = FakeArray((512,), first.storage.dtype, memory(3 << 30))
    bias.flags = SimpleNamespace(c_contiguous=True)
    x = gemm.tokens(20)
    for weight, added in ((first, None), (second, bias), (first, bias), (first, None)):
        gemm.linear(x, weight, added, out_name="y")
    arguments = [(call[-1].weight, call[-1].bias) for call in gemm.launched]
    assert arguments == [(1 << 30, None), (2 << 30, 3 << 30), (1 << 30, 3 << 30), (1 << 30, None)]
    assert len(gemm.linear._launches) == 1


def test_a_new_number_of_tokens_makes_no_new_map(gemm, linear):
    weight = gemm.matrix(1 << 30)
    for count in range(65, 97):
        gemm.linear(gemm.tokens(count), weight, out_name="y")
    assert [call[-1].tokens for call in gemm.launched] == list(range(65, 97))
    assert linear.maps == [((BUFFER_BYTES // 1024, 512), (96, 64))]


def test_pairs_are_launched_as_clusters(gemm, linear):
    weight = gemm.matrix(1 << 30, 4096, 4096)
    gemm.linear(gemm.tokens(256, 4096), weight, out_name="y")
    entry, grid, cluster, _, arguments = gemm.launched[0]
    assert (entry, grid, cluster, arguments.pairs) == ("linear_n128", 128, 2, 64)
    gemm.linear(gemm.tokens(8, 4096), weight, out_name="y")
    assert gemm.launched[1][2] == 1


def test_blocks_with_multicast_are_a_cluster_and_copy_half_a_tile_each(gemm, linear):
    weight = gemm.matrix(1 << 30, 28672, 4096)
    gemm.linear(gemm.tokens(2048, 4096), weight, out_name="y")
    entry, grid, cluster, _, arguments = gemm.launched[0]
    assert (entry, grid, cluster, arguments.shares_tokens) == ("linear_n256", 128, 2, 1)
    assert linear.maps[-1][1] == (128, 64)


def test_a_pipeline_of_one_stage_of_wide_tiles_is_refused(gemm, linear):
    half = linear.Linear(make_device([]), shared_bytes=232448 // 2)
    half(gemm.tokens(8), gemm.matrix(1 << 30), out_name="y")
    with pytest.raises(ShapeError, match="116224 B of shared memory are too few"):
        half(gemm.tokens(512, 4096), gemm.matrix(1 << 30, 28672, 4096), out_name="y")


def test_a_matrix_that_does_not_fit_is_refused_each_time(gemm, linear):
    gated = linear.PackedMatrix(gemm.matrix(1 << 30).storage, 512, 512, "gate_up_interleaved")
    for _ in range(2):
        with pytest.raises(ShapeError, match="rows are gate_up_interleaved"):
            gemm.linear(gemm.tokens(20), gated, out_name="y")
    with pytest.raises(ShapeError, match=r"must be \[N, 512\]"):
        gemm.linear(gemm.tokens(20, 256), gemm.matrix(1 << 30), out_name="y")


def test_a_quantized_matrix_takes_the_kernel_of_its_format_and_its_own_scales(gemm, linear):
    x = gemm.tokens(20)
    for name, group_shift in (("fp8_block", 2), ("int4_g64_zero", 1)):
        packed = PACKED_FORMATS[name]
        blocks, rows, size = packed.sections(512, 512)
        for address in (1 << 30, 2 << 30):
            storage = FakeArray((size,), np.dtype(np.uint8), memory(address))
            matrix = linear.QuantizedStorage(storage, 512, 512, "plain", packed)
            gemm.linear(x, matrix, out_name="y")
            entry, _, cluster, _, quantized, arguments = gemm.launched[-1]
            assert (entry, cluster) == (f"{name}linear_n32", 1)
            assert (arguments.weight, arguments.k_tiles) == (address, packed.tiles(512, 512)[1])
            assert (quantized.row_scales, quantized.block_scales) == (address + rows, address + blocks)
            assert (quantized.tile_bytes, quantized.group_shift) == (packed.tile_bytes, group_shift)
            assert quantized.has_zero_points == packed.has_zero_points
    gemm.linear(x, gemm.matrix(1 << 30), out_name="y")
    assert gemm.launched[-1][0] == "linear_n32"
    assert len(gemm.linear._launches) == 3


def test_an_fp8_head_meets_16_bit_activations_however_many_sequences_there_are(gemm, linear, monkeypatch):
    def rounded(self, x, *, in_groups):
        assert not in_groups
        return linear.Codes(x, FakeArray((1024,), np.dtype(np.float32), memory(5 << 30)), 0)

    monkeypatch.setattr(linear.TokenCodes, "__call__", rounded)
    gemm.linear.reserve(2048, 512)
    packed = PACKED_FORMATS["fp8"]
    storage = FakeArray((packed.sections(512, 512)[2],), np.dtype(np.uint8), memory(1 << 30))
    matrix = linear.QuantizedStorage(storage, 512, 512, "plain", packed)
    for count in (1, 64, 65, 1024):
        gemm.linear.logits(gemm.tokens(count), matrix, out_name="z")
        assert gemm.launched[-1][0].startswith("fp8linear_logits_n")
    gemm.linear(gemm.tokens(1024), matrix, out_name="y")
    assert gemm.launched[-1][0].startswith("fp8linear_w8a8_n"), "other GEMMs take them"


@pytest.fixture
def portable(linear):
    return importlib.import_module("wisp_runtime.ops.cuda.gemm.portable_linear")


def test_the_portable_kernels_get_the_address_of_the_tokens(portable, gemm):
    launched = []
    multiply = portable.PortableLinear(make_device(launched))
    x, weight = gemm.tokens(20), gemm.matrix(1 << 30)
    multiply(x, weight, out_name="y")
    multiply.logits(x, weight, out_name="z")
    entry, grid, cluster, tokens, arguments = launched[0]
    assert (entry, grid, cluster) == ("linear_mma_n32", (1, 4, 2), 1)
    assert (tokens, tokens.dtype) == (x.data.ptr, np.uint64)
    assert (arguments.x_stride, arguments.rows, arguments.inputs, arguments.tokens) == (512, 512, 512, 20)
    assert launched[1][0] == "linear_logits_mma_n32"


def test_portable_quantized_matrices_of_a_shape_have_a_launch_a_format(portable, gemm):
    quantized = importlib.import_module("wisp_runtime.ops.cuda.weights.quantized")
    launched = []
    multiply, x = portable.PortableLinear(make_device(launched)), gemm.tokens(80)
    for address, name in ((1 << 30, "int4_zero"), (2 << 30, "int4"), (3 << 30, "fp8"), (4 << 30, "int4")):
        storage = FakeArray((1,), np.dtype(np.uint8), memory(address))
        packed = PACKED_FORMATS[name]
        multiply(x, quantized.QuantizedStorage(storage, 512, 512, "plain", packed), out_name="y")
        entry, _, _, tokens, arguments = launched[-1]
        assert entry == f"{name}linear_mma_{'fp8' if name == 'fp8' else 'int4'}_n128"
        assert (tokens, arguments.weight) == (x.data.ptr, address)
        assert (arguments.slice_bytes, arguments.zero_points > 0) == (packed.slice_bytes, name == "int4_zero")
        assert arguments.row_scales == packed.sections(512, 512)[1]


@pytest.mark.parametrize("sms", [1, 58, 132])
@pytest.mark.parametrize("name", ["bf16", "int8", "int4"])
def test_a_portable_gemm_fits_its_block_and_the_workspace(portable, linear, name, sms):
    plan = portable.plan_portable
    if name != "bf16":
        plan = partial(portable.plan_quantized, PACKED_FORMATS[name])
    tiling = importlib.import_module("wisp_runtime.ops.cuda.gemm.tiling")
    for rows, inputs in ((8, 72), (576, 576), (1000, 4096), (6144, 4096), (4096, 14336), (128256, 4096)):
        for tokens in (1, 8, 9, 33, 64, 65, 80, 96, 97, 128, 129, 300, 2051, 131072):
            gemm = tiling.GemmShape(rows, inputs, tokens)
            chosen = plan(gemm, sms)
            n_tiles, m_tiles, splits = chosen.grid
            assert n_tiles * chosen.block_n >= tokens
            assert m_tiles * BLOCK_M >= rows
            assert 1 <= splits <= gemm.k_tiles
            assert chosen.shared_bytes <= 101376, "more than a block of sm_86 and sm_89 may have"
            reserved = block_n(tokens)
            if splits > 1:
                assert n_tiles * m_tiles <= 2 * sms, "more counters than there are"
                blocks = n_tiles * m_tiles * splits
                assert blocks * chosen.block_n <= 2 * sms * reserved, "more partial tiles than are reserved"
