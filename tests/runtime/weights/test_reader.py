"""Reading files into weights, and storing them on a GPU that NumPy simulates."""

from __future__ import annotations

import math
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from spec_changes import changed

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.checkpoint.index import combine
from wisp_plan.families.config import parse_config
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.layout import held_elements, padded
from wisp_plan.weights.sizes import weight_bytes
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.errors import ShapeError, WeightsUnreadable
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cuda.weights.pipelined_uploader import PipelinedUploader
from wisp_runtime.ops.protocol.weights.row_permutation import fused_permutation, permuted_row
from wisp_runtime.ops.protocol.weights.upload import (
    PAGE_BYTES,
    SLACK_BYTES,
    STORED,
    WeightDestination,
    page_aligned,
)
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import plan
from wisp_runtime.weights.reader import Files, WeightReader

BF16 = np.dtype(ml_dtypes.bfloat16)


def chunk_of(name, start, shape):
    """Return the read of a whole BF16 tensor of file ``a``."""
    info = TensorInfo(name, "BF16", shape, start, start + 2 * int(np.prod(shape)), "a")
    weight = WeightSpec(name, shape, stacked((name, shape)), "norm")
    return plan([weight], {name: info}, 1 << 20)[0]


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(("start", "size"), [(0, 10), (4095, 2), (8192, 4096), (777, 50_000), (59_990, 10)])
def test_a_chunk_is_read_whole_wherever_it_lies(tmp_path, is_direct, start, size):
    data = np.random.default_rng(start).integers(0, 256, 60_000).astype(np.uint8)
    (tmp_path / "a").write_bytes(data.tobytes())
    buffer = page_aligned(np.zeros(size + SLACK_BYTES + PAGE_BYTES, np.uint8))
    try:
        files = Files(tmp_path, ["a"], is_direct=is_direct)
    except WeightsUnreadable:
        pytest.skip("this file system has no O_DIRECT")
    with files:
        rows = files.read(chunk_of("w", start, (size // 2,)), buffer)
    np.testing.assert_array_equal(rows, data[start : start + size])
    assert rows.base is not None  # a part of the buffer, no copy


def test_a_file_that_ends_early_is_named_with_its_tensor(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    chunk = chunk_of("model.norm.weight", 40, (100,))
    with (
        Files(tmp_path, ["a"]) as files,
        pytest.raises(WeightsUnreadable, match=r"a: ended while model\.norm"),
    ):
        files.read(chunk, np.zeros(1000, np.uint8))


def test_a_file_that_cannot_be_opened_or_read_is_named(tmp_path):
    with pytest.raises(WeightsUnreadable, match="gone: cannot be opened: No such file"):
        Files(tmp_path, ["gone"])
    (tmp_path / "a").mkdir()
    chunk = chunk_of("w", 0, (100,))
    with (
        Files(tmp_path, ["a"]) as files,
        pytest.raises(WeightsUnreadable, match="reading w failed: Is a dir"),
    ):
        files.read(chunk, np.zeros(1000, np.uint8))


@pytest.mark.parametrize("rows", [16, 48, 14336])
def test_gate_and_up_alternate_by_eights(rows):
    positions = [permuted_row(row, rows, "gate_up_interleaved") for row in range(rows)]
    assert sorted(positions) == list(range(rows))
    at = dict(zip(positions, range(rows), strict=True))
    assert [at[position] for position in range(16)] == [*range(8), *range(rows // 2, rows // 2 + 8)]


# A GPU simulated by NumPy: packed matrices in bf16, and copies that happen long after they were requested.


class Packed:
    def __init__(self, storage, outputs, inputs, permutation):
        self.storage, self.outputs, self.inputs, self.permutation = storage, outputs, inputs, permutation

    def store(self, first, rows):
        for number, row in enumerate(rows, first):
            position = permuted_row(number, self.outputs, self.permutation)
            self.storage[self._indices(position)] = row.astype(BF16)

    def rows(self):
        """Return the rows as the checkpoint stacks them."""
        positions = permuted_row(np.arange(self.outputs), self.outputs, self.permutation)
        return np.stack([self.storage[self._indices(position)] for position in positions]).astype(np.float32)

    def _indices(self, row):
        columns = np.arange(self.inputs)
        block = (row // 64 * (padded(self.inputs) // 64) + columns // 64) * 4096
        return block + row % 64 * 64 + ((columns % 64 // 8) ^ (row % 8)) * 8 + columns % 8


class LateCopyEngine:
    """Takes what a buffer holds only when somebody waits for it, as the worst GPU might."""

    def __init__(self, count, size):
        self.buffers = [np.zeros(size + SLACK_BYTES, np.uint8) for _ in range(count)]
        self.sent = [[] for _ in range(count)]
        self.is_closed = False

    def wait(self, slot):
        for rows, destination in self.sent[slot]:
            values = rows.view(STORED[destination.dtype]).reshape(destination.shape)
            if len(destination.shape) == 2:
                destination.weight.store(destination.first, values)
            else:
                for number, value in enumerate(values.astype(BF16), destination.first):
                    destination.weight[
                        permuted_row(number, len(destination.weight), destination.permutation)
                    ] = value
        self.sent[slot].clear()

    def send(self, slot, rows, destination):
        assert not self.sent[slot], "sent twice without waiting"
        self.sent[slot].append((rows, destination))

    def close(self):
        for slot in range(len(self.buffers)):
            self.wait(slot)
        self.is_closed = True
        return True


class SimulatedGpu(CpuOps):
    chunk_bytes = 3000

    def weight_bytes(self, weight):
        return 2 * held_elements(weight)

    def weight(self, weight, storage):
        held = storage.view(BF16)
        if not weight.is_matrix:
            return held[: math.prod(weight.shape)]
        return Packed(held, *weight.shape, self.row_permutation(weight))

    def row_permutation(self, weight):
        return fused_permutation(weight.rows)

    def uploader(self, total_bytes):
        return PipelinedUploader(LateCopyEngine(3, self.chunk_bytes), threads=5, chunk_bytes=self.chunk_bytes)


CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 72,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "vocab_size": 150,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
SPEC = changed(parse_config(CONFIG), has_bias=True, has_output_bias=True, has_qk_norm=True)


def checkpoint(folder, spec, dtype):
    """Write two shards of random numbers; return them, and the headers' entries by name."""
    numbers = np.random.default_rng(5)
    tensors = {
        tensor.name: numbers.standard_normal(tensor.shape).astype(dtype) for tensor in expected_tensors(spec)
    }
    names = list(tensors)
    random.Random(1).shuffle(names)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in files.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    return tensors, combine(read_file(folder / file).headers[0] for file in files).by_name


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_every_parameter_of_a_gpu_is_what_the_files_hold(tmp_path, dtype, is_direct):
    tensors, infos = checkpoint(tmp_path, SPEC, dtype)
    ops, declared = SimulatedGpu(threads=1), declare(SPEC)
    weights = Weights(ops, declared)
    uploader, reports = ops.uploader(0), []
    chunks = plan(declared, infos, uploader.chunk_bytes)
    try:
        files = Files(tmp_path, ["a.safetensors", "b.safetensors"], is_direct=is_direct)
    except WeightsUnreadable:
        pytest.skip("this file system has no O_DIRECT")
    uploader._engine.buffers = [page_aligned(np.zeros(3000 + 3 * PAGE_BYTES, np.uint8)) for _ in range(3)]
    with files, WeightReader(files, chunks, weights, uploader) as reader:
        reader.wait(lambda *now: reports.append(now))
    assert uploader._engine.is_closed
    total = sum(info.size_bytes for info in infos.values())
    assert (reports[0], reports[-1]) == ((0, total), (total, total))
    for weight in declared:
        stacked = np.concatenate([tensors[source.tensor] for source in weight.sources]).astype(BF16)
        held = weights[weight.name]
        if isinstance(held, Packed):
            rows = held.rows()
        else:
            rows = held[permuted_row(np.arange(len(stacked)), len(stacked), ops.row_permutation(weight))]
        assert np.array_equal(rows.astype(np.float32), stacked.astype(np.float32)), weight.name


@pytest.mark.parametrize("switches", [{}, {"ties_embeddings": False}, {"has_qkv_bias": False, "inner": 128}])
def test_the_arena_of_a_gpu_is_what_the_ledger_counts(switches):
    spec = changed(SPEC, **switches)
    weights = Weights(SimulatedGpu(threads=1), declare(spec))
    assert weights.arena.nbytes == weight_bytes(spec, "bf16", "cuda").weights
    starts = [weights[weight.name] for weight in declare(spec) if not weight.is_matrix]
    assert all((start.ctypes.data - weights.arena.ctypes.data) % 128 == 0 for start in starts)


class BrokenCopyEngine(LateCopyEngine):
    def send(self, slot, rows, destination):
        raise WeightsUnreadable("the GPU is gone")


def test_a_device_that_fails_ends_the_load_and_the_tensor_is_noted(tmp_path):
    _, infos = checkpoint(tmp_path, SPEC, BF16)
    weights = Weights(SimulatedGpu(threads=1), declare(SPEC))
    uploader = PipelinedUploader(BrokenCopyEngine(2, 3000), threads=4, chunk_bytes=3000)
    chunks = plan(declare(SPEC), infos, 3000)
    with (
        Files(tmp_path, {info.file for info in infos.values()}) as files,
        pytest.raises(WeightsUnreadable, match="the GPU is gone") as caught,
        WeightReader(files, chunks, weights, uploader) as feed,
    ):
        feed.wait(lambda *_: None)
    assert f"while {chunks[0].tensor.name} of a.safetensors" in caught.value.__notes__[0]


def test_more_rows_than_a_buffer_holds_are_refused():
    uploader = PipelinedUploader(LateCopyEngine(1, 100), threads=1, chunk_bytes=100)
    with pytest.raises(ShapeError, match="a buffer has 100"):
        uploader.upload(WeightDestination(None, "plain", 0, (51,), "BF16"), 102, lambda buffer: buffer)


def test_random_weights_do_not_depend_on_how_they_are_cut(monkeypatch):
    def tiles():
        ops = CpuOps(threads=1)
        weights = Weights(ops, declare(SPEC))
        weights.randomize(7)
        return weights

    whole = tiles()
    monkeypatch.setattr("wisp_runtime.ops.cpu.ops._NUMBERS_AT_ONCE", 1000)
    np.testing.assert_array_equal(whole.arena, tiles().arena)
    assert len(np.unique(whole["layers.0.mlp_norm.weight"])) > 20
    assert abs(whole["norm.weight"].mean() - 1) < 0.05
    assert abs(whole["layers.1.qkv.bias"]).max() < 0.1
    rows = CpuOps(threads=1).embedding(np.arange(150), whole["embeddings.weight"])
    assert abs(rows.std() * 72**0.5 - 1) < 0.05
    np.testing.assert_array_equal(rows, rows.astype(BF16).astype(np.float32))
    different = CpuOps(threads=1).embedding(np.arange(72), whole["layers.0.output.weight"])
    assert not np.isin(different, rows[:72]).all()


def test_a_random_model_answers(tmp_path: Path):
    from wisp_runtime.models.load import random_model

    model = random_model(SPEC, CpuOps(threads=1), seed=3)
    assert model.spec == SPEC
