"""Buffers of GEMM results, and checks before weights are read; on a fake CuPy."""

import math
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from emulated_gpu import imported

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.buffers.gpu import op_buffers
from wisp_plan.memory.step import StepSizes
from wisp_plan.presets import shape_spec
from wisp_plan.spec.weight import GateUpRows, RotaryRows, WeightSpec
from wisp_runtime.errors import ConfigError, GpuOutOfMemory, KernelNotCompiled, KernelsMissing, ShapeError
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.gemm import planner
from wisp_runtime.ops.cuda.moe.plan import MOE_KERNELS
from wisp_runtime.ops.protocol.attention import UNQUANTIZED, KvCache, QkvProjection


class FakeArray:
    """A contiguous CuPy array as far as an op's checks look at it."""

    def __init__(self, shape, dtype, address):
        self.shape, self.ndim, self.size = shape, len(shape), math.prod(shape)
        self.dtype, self.flags = np.dtype(dtype), SimpleNamespace(c_contiguous=True)
        self.data = SimpleNamespace(ptr=address)

    def __len__(self):
        return self.shape[0]


class FakeWorkspace:
    """Buffers grow as the real one's do: what is replaced lies elsewhere."""

    def __init__(self):
        self.bytes, self.grown = {}, 0

    def array(self, name, shape, dtype):
        needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
        address, size = self.bytes.get(name, (0, -1))
        if size < needed:
            self.grown += 1
            address = self.grown << 20
            self.bytes[name] = address, needed
        return FakeArray(shape, dtype, address)

    def view(self, buffer):
        return self.array(buffer.name, buffer.shape, buffer.dtype)

    def reserve(self, buffers):
        for buffer in buffers:
            self.view(buffer)


@pytest.fixture
def module():
    """The module ``ops/cuda/ops.py``, imported with the stand-ins."""
    with imported("ops") as (module,):
        yield module


def fake_device():
    return MagicMock(workspace=FakeWorkspace(), sm_count=132, shared_bytes=232448, arch="sm_90a")


@pytest.fixture
def ops(module):
    ops = module.CudaOps(fake_device())
    ops._linear = MagicMock()
    return ops


def some_rows(workspace, count):
    return workspace.array("chosen", (count,), np.int64)


def name_of(ops):
    return ops._linear.call_args.kwargs["out_name"]


class QkvPath:
    """Path of :meth:`CudaOps.project_qkv`: fused or separate."""

    @staticmethod
    def rope(*_, is_interleaved, is_zero_centred):
        assert not is_zero_centred
        return f"rope{' interleaved' * is_interleaved}"

    def __init__(self, ops, fuses_rope):
        self.ops = ops
        ops._rope = MagicMock(side_effect=self.rope)
        ops._linear = MagicMock(fuses_rope=fuses_rope)
        ops._linear.rotary.return_value = "rotary"

    def take(self, permutation, size, rotary_size, norm=None, tokens=3):
        norms = {"q_norm": norm, "k_norm": norm, "eps": 0.0, "is_zero_centred": False}
        heads = SimpleNamespace(queries=2, keys=1, size=size, **norms)
        table = np.zeros((9, rotary_size // 2))
        rotary = SimpleNamespace(cosines=table, sines=table)
        weight = SimpleNamespace(permutation=permutation, outputs=4 * size)
        projection = QkvProjection(weight, None, heads, rotary)
        return self.ops.project_qkv(np.zeros((tokens, 8)), projection, MagicMock(), KvCache(None, None))


def test_a_gemm_applies_rope_where_it_can(ops):
    hopper = QkvPath(ops, fuses_rope=True)
    assert hopper.take("rope_interleaved_128", 128, 128) == "rotary"
    assert hopper.take("plain", 64, 64) == "rotary"  # heads of 64 fit a row tile as they are
    assert hopper.take("plain", 64, 32) == "rope"
    assert hopper.take("plain", 64, 64, norm="norm") == "rope"
    assert hopper.take("plain", 80, 80) == "rope"
    assert hopper.take("rope_interleaved_128", 128, 128, tokens=768) == "rotary"
    assert hopper.take("rope_interleaved_128", 128, 128, tokens=769) == "rope interleaved"
    assert hopper.take("plain", 64, 64, tokens=769) == "rope"
    assert QkvPath(ops, fuses_rope=False).take("plain", 64, 64) == "rope"
    assert ops._linear.call_args.kwargs["out_name"] == "qkv"


@pytest.mark.parametrize(("fuses_rope", "permutation"), [(True, "rope_interleaved_128"), (False, "plain")])
def test_rows_are_interleaved_where_the_gemm_applies_rope(module, fuses_rope, permutation):
    ops = module.CudaOps(fake_device(), MagicMock(fuses_rope=fuses_rope))
    structures = (RotaryRows(128), GateUpRows(), None)
    weights = [WeightSpec("w", (256, 8), (), "projection", rows=rows) for rows in structures]
    assert [ops.row_permutation(weight) for weight in weights] == [
        permutation,
        "gate_up_interleaved",
        "plain",
    ]


def test_every_buffer_of_the_ops_is_allocated_as_it_is_declared(module, ops):
    """A largest step of one token a sequence gathers no rows before the seal."""
    spec, step = shape_spec("llama-3-8b"), StepSizes(5, 5, 8192, 16, sm_count=132)
    ops.reserve(spec, step)
    workspace = ops.gpu.workspace
    declared = {buffer.name: math.prod(buffer.shape) for buffer in op_buffers(spec, step)}
    allocated = {name: size for name, (_, size) in workspace.bytes.items()}
    assert allocated.keys() == declared.keys()
    assert all(allocated[name] % declared[name] == 0 for name in declared)
    attention, rows = workspace.array("attention", (4, 4096), module.BF16), some_rows(workspace, 3)
    before = workspace.grown
    assert ops.gather_rows(attention, rows).shape == (3, 4096)
    assert workspace.grown == before


def test_layers_with_and_without_a_window_have_tables_of_their_own():
    spec = shape_spec("llama-3-8b")
    windowed = [
        replace(layer, mixer=replace(layer.mixer, window=128 if index % 2 else None))
        for index, layer in enumerate(spec.layers)
    ]
    step = StepSizes(5, 5, 8192, 16, sm_count=132, kv=KvLayers.of("turbo4", plain_layers=2))
    names = [buffer.name for buffer in op_buffers(replace(spec, layers=tuple(windowed)), step)]
    tables = {"prefill_attention.work_tiles", "kv_scratch.work_tiles", "kv_scratch.runs"}
    tables |= {"prefill_attention.1.work_tiles", "kv_scratch.1.work_tiles", "kv_scratch.1.runs"}
    assert {name for name in names if name.endswith(("work_tiles", "runs"))} == tables
    assert len(set(names)) == len(names)


def test_a_gemm_of_gathered_rows_writes_the_output_buffer(module, ops):
    workspace = ops.gpu.workspace
    attention = workspace.array("attention", (4, 64), module.BF16)
    gathered = ops.gather_rows(attention, some_rows(workspace, 2))
    assert (gathered.shape, gathered.dtype) == ((2, 64), module.BF16)
    ops.linear(gathered, None)
    assert name_of(ops) == "output"
    with pytest.raises(ShapeError, match="rows is the buffer of x"):
        ops.gather_rows(gathered, some_rows(workspace, 1))


@pytest.mark.parametrize(
    ("count", "chosen", "fits"), [(4, None, True), (2, 2, True), (4, 2, False), (2, None, False)]
)
def test_x_has_as_many_rows_as_are_added_to(module, ops, count, chosen, fits):
    workspace = ops.gpu.workspace
    x = workspace.array("output", (count, 64), module.BF16)
    weight = workspace.array("weight", (64,), module.BF16)
    residual = workspace.array("residual", (4, 64), np.float32)
    rows = None if chosen is None else some_rows(workspace, chosen)
    with nullcontext() if fits else pytest.raises(ShapeError, match="x is"):
        assert ops.add_rmsnorm(x, residual, weight, eps=1e-5, rows=rows).shape == (count, 64)


@pytest.mark.parametrize(
    ("shape", "dtype", "rows"),
    [
        ((4, 60), None, (2,)),  # columns
        ((4, 2, 8), None, (2,)),
        ((4, 64), np.float32, (2,)),
        ((4, 64), None, (2, 1)),
    ],
)
def test_rows_that_cannot_be_gathered_are_refused(module, ops, shape, dtype, rows):
    workspace = ops.gpu.workspace
    x = workspace.array("attention", shape, dtype or module.BF16)
    with pytest.raises(ShapeError, match="gather_rows"):
        ops.gather_rows(x, workspace.array("chosen", rows, np.int64))


def test_a_kernel_that_is_not_compiled_is_missed_when_the_gpu_is_opened(module, monkeypatch):
    kernels = MagicMock()
    kernels.require.side_effect = KernelsMissing("linear")
    monkeypatch.setattr(module, "open_gpu", lambda: MagicMock(kernels=kernels))
    with pytest.raises(KernelsMissing):
        module.CudaOps.open()
    known = Catalogue().resolve("hopper")
    optional = {
        "fill_random",
        "pack_quantized",
        "quantize_rows",
        "quantize_tokens",
        "stream_experts",
        *module.DeltaNetMixers.DELTA_NET_KERNELS,
        *module.MambaMixers.MAMBA_KERNELS,
        *MOE_KERNELS,
        *module.NEEDED_BY_QUANTIZED_KV,
    }  # random weights, quantized ones, caches, layers that few models have
    assert set(kernels.require.call_args.args) == known.keys() - optional


def test_kernels_of_a_quantized_cache_are_looked_up_apart_from_its_buffers(module, ops):
    missing = KernelsMissing("quantize_kv")
    ops.gpu.kernels.require.side_effect = missing
    ops.require_kv(KvLayers.of("bf16"))
    with pytest.raises(KernelsMissing):
        ops.require_kv(KvLayers.of("turbo4", plain_layers=2))
    assert set(ops.gpu.kernels.require.call_args.args) == set(module.NEEDED_BY_QUANTIZED_KV)
    assert set(module.NEEDED_BY_QUANTIZED_KV) <= Catalogue().resolve("hopper").keys()


class OutOfMemoryError(MemoryError):
    pass


OutOfMemoryError.__module__ = "cupy.cuda.memory"


def test_a_table_that_finds_no_memory_says_so(module, ops, monkeypatch):
    monkeypatch.setattr(module, "to_device", MagicMock(side_effect=OutOfMemoryError))
    with pytest.raises(GpuOutOfMemory, match="copying an array to the GPU"):
        ops.from_host(np.zeros(4, np.float32))


def test_with_a_fixed_order_no_product_and_no_attention_is_cut(module):
    ops = module.CudaOps(fake_device(), MagicMock(fuses_rope=True))
    ops.set_batch_invariant()
    assert ops._linear._planner is planner.data_parallel_plan
    assert (ops._prefill_attention._splits, ops._max_fused_rope_tokens) == (False, 0)
    assert ops._decode_attention._is_batch_invariant
    assert not ops._experts._has_wide


@pytest.mark.parametrize("is_fixed", [False, True])
def test_with_a_fixed_order_a_shared_expert_has_gemms_of_its_own(module, is_fixed):
    ops = module.CudaOps(fake_device(), MagicMock(fuses_rope=True))
    if is_fixed:
        ops.set_batch_invariant()
    ops._experts = MagicMock()
    ops._experts.joins_shared.return_value = True
    assert ops.joins_shared(MagicMock(), 1) is not is_fixed


def test_a_fixed_order_is_refused_where_products_are_not_hoppers(module):
    ops = module.CudaOps(fake_device(), MagicMock(fuses_rope=False))
    with pytest.raises(ConfigError, match="--deterministic is for Hopper GPUs"):
        ops.set_batch_invariant()


def test_a_persistent_kernel_that_a_model_cannot_have_has_a_reason_others_must_be_compiled(ops, monkeypatch):
    decode = sys.modules["wisp_runtime.ops.cuda.persistent.decode"]
    monkeypatch.setattr(decode, "weight_format_of", lambda weights, spec: "bf16")
    ops.gpu.kernels.get_template.side_effect = KernelNotCompiled("not compiled")
    ops._is_batch_invariant = True

    def made(shape):
        spec = shape_spec(shape)
        return ops.persistent_kernel(spec, {}, None, 32, (UNQUANTIZED,) * len(spec.layers))

    assert "an order that depends on the batch" in made("qwen3-30b-a3b")
    assert "compared bit by bit" in made("qwen3.5-9b")
    assert "an order that depends on the batch" in made("gpt-oss-20b")
    with pytest.raises(KernelNotCompiled):
        made("qwen3-8b")


def test_a_persistent_kernel_that_was_never_timed_is_for_those_who_ask_for_it(ops, monkeypatch):
    decode = sys.modules["wisp_runtime.ops.cuda.persistent.decode"]
    monkeypatch.setattr(decode, "weight_format_of", lambda weights, spec: "fp8_block")
    ops.gpu.kernels.get_template.side_effect = KernelNotCompiled("not compiled")
    spec = shape_spec("qwen3-next-80b-a3b")
    made = spec, {}, None, 32, (UNQUANTIZED,) * len(spec.layers)
    reason = ops.persistent_kernel(*made, must_be_timed=True)
    assert "was never timed" in reason
    assert "--decode-path persistent" in reason
    with pytest.raises(KernelNotCompiled):
        ops.persistent_kernel(*made)
