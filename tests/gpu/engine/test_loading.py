"""From safetensors files into the GPU's arena: every number in its place, padding zero, failures named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from spec_changes import changed

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from safetensors.numpy import save_file  # noqa: E402

from wisp_plan.families.config import parse_config  # noqa: E402
from wisp_plan.spec.weight import WeightSpec  # noqa: E402
from wisp_plan.weights.declaration import declare  # noqa: E402
from wisp_plan.weights.sizes import weight_bytes  # noqa: E402
from wisp_plan.weights.tensors import expected_tensors  # noqa: E402
from wisp_runtime.errors import GpuOutOfMemory, ShapeError, WeightsUnreadable  # noqa: E402
from wisp_runtime.models.load import open_checkpoint  # noqa: E402
from wisp_runtime.ops import reference  # noqa: E402
from wisp_runtime.ops.cpu.ops import CpuOps  # noqa: E402
from wisp_runtime.ops.cuda.device.arena import Arenas, allocate  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_host  # noqa: E402
from wisp_runtime.ops.cuda.weights import copy_engine  # noqa: E402
from wisp_runtime.ops.cuda.weights.packing import unpack_rows  # noqa: E402
from wisp_runtime.ops.protocol.weights.row_permutation import fused_permutation  # noqa: E402
from wisp_runtime.ops.reference.packing import pack, permuted_rows  # noqa: E402
from wisp_runtime.weights.arena import Weights  # noqa: E402
from wisp_runtime.weights.chunks import plan  # noqa: E402
from wisp_runtime.weights.reader import Files, WeightReader  # noqa: E402

ODD = {
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
# 39 M numbers, in 40 chunks or more, so that buffers are used again.
LARGE = ODD | {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8011,
    "tie_word_embeddings": False,
}


BY_HEADS = ODD | {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 128}


def spec_of(config):
    """Biases everywhere; norms of Q and K where rows do not lie by heads."""
    has_norms = config is not BY_HEADS
    return changed(parse_config(config), has_bias=True, has_output_bias=True, has_qk_norm=has_norms)


def random_tensors(spec, dtype):
    """Return random numbers of every size and sign, float32's subnormals and bf16's ties among them."""
    random = np.random.default_rng(5)
    for tensor in expected_tensors(spec):
        numbers = random.standard_normal(tensor.shape, np.float32)
        flat = numbers.reshape(-1)
        flat[::97] *= 1e-7
        flat[5::101] = 1 + 2.0**-8  # halfway between two bf16
        flat[6::101] = -(1 + 3 * 2.0**-8)
        yield tensor.name, numbers.astype(dtype)


def write(folder, config, dtype):
    """Write two shards; return the spec and the tensors."""
    spec = spec_of(config)
    tensors = dict(random_tensors(spec, dtype))
    names = list(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in shards.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    index = {name: file for file, some in shards.items() for name in some}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return spec, tensors


def load(folder, spec, ops, told=lambda *_: None, *, is_direct=False):
    """Bring a checkpoint's tensors into weights, without a model around them."""
    checkpoint = open_checkpoint(folder, spec)
    weights = Weights(ops, checkpoint.weights)
    uploader = ops.uploader(checkpoint.tensors.tensor_bytes)
    chunks = plan(checkpoint.weights, checkpoint.tensors.by_name, uploader.chunk_bytes)
    with (
        Files(folder, checkpoint.tensors.files, is_direct=is_direct) as files,
        WeightReader(files, chunks, weights, uploader) as reader,
    ):
        reader.wait(told)
    return weights


def assert_equal(weights, spec, tensors):
    """Compare every parameter, padding included, with the tensors that it is made of."""
    for weight in declare(spec):
        stacked = np.concatenate([tensors[source.tensor] for source in weight.sources]).astype(BF16)
        held, permutation = weights[weight.name], fused_permutation(weight.rows)
        if weight.is_matrix:
            found, expected = to_host(held.storage), pack(stacked.view(np.uint16), permutation)
        else:
            found, expected = to_host(held), np.empty(weight.shape, np.uint16)
            expected[permuted_rows(len(stacked), permutation)] = stacked.view(np.uint16)
        assert np.array_equal(found.view(np.uint16), expected), weight.name


@pytest.fixture
def ops(device):
    return Arenas(device, fuses_rope=True)


CASES = [
    *((ODD, dtype, is_direct) for dtype in (np.float32, np.float16, BF16) for is_direct in (False, True)),
    (BY_HEADS, np.float32, False),
    (BY_HEADS, BF16, True),
    (LARGE, np.float32, False),
    (LARGE, np.float16, True),
    (LARGE, BF16, False),
]


@pytest.mark.parametrize(
    ("config", "dtype", "is_direct"),
    CASES,
    ids=[f"{config['head_dim']} {np.dtype(dtype).name} {is_direct}" for config, dtype, is_direct in CASES],
)
def test_every_parameter_equals_the_files(ops, tmp_path, config, dtype, is_direct):
    spec, tensors = write(tmp_path, config, dtype)
    told = []
    try:
        weights = load(tmp_path, spec, ops, lambda *now: told.append(now), is_direct=is_direct)
    except WeightsUnreadable as error:
        if is_direct and "cannot be opened" in error.message:
            pytest.skip("this file system has no O_DIRECT")
        raise
    assert_equal(weights, spec, tensors)
    total = sum(values.nbytes for values in tensors.values())
    assert (told[0], told[-1]) == ((0, total), (total, total))
    assert weights.arena.nbytes == weight_bytes(spec, "bf16", "cuda").weights


def test_unpacking_gives_the_rows_of_the_file_back(device, ops, tmp_path):
    spec, tensors = write(tmp_path, ODD, BF16)
    weights = load(tmp_path, spec, ops)
    for name, parts in {
        "layers.1.qkv.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "layers.1.gate_up.weight": ("mlp.gate_proj", "mlp.up_proj"),
    }.items():
        stacked = np.concatenate([tensors[f"model.layers.1.{part}.weight"] for part in parts])
        found = to_host(unpack_rows(device, weights[name], 0, len(stacked)))
        assert np.array_equal(found.view(np.uint16), stacked.view(np.uint16)), name


def test_the_buffers_are_free_again_when_all_is_stored(device, ops, tmp_path):
    spec, tensors = write(tmp_path, LARGE, np.float32)
    kept = load(tmp_path, spec, ops)  # modules are loaded now
    before = device.free_bytes()
    weights = load(tmp_path, spec, ops)
    taken = before - device.free_bytes()
    assert 0 <= taken - weights.arena.nbytes <= 4 << 20  # the driver gives out 2 MiB at a time
    assert_equal(kept, spec, tensors)


@pytest.mark.parametrize("kept", [9000, 100_000])
def test_a_file_cut_short_while_it_is_read_is_named(ops, tmp_path, monkeypatch, kept):
    spec, _ = write(tmp_path, ODD, np.float32)
    uploader = Arenas.uploader

    def cut_then_begin(self, total_bytes):
        with (tmp_path / "b.safetensors").open("r+b") as file:
            file.truncate(kept)
        return uploader(self, total_bytes)

    monkeypatch.setattr(Arenas, "uploader", cut_then_begin)
    with pytest.raises(WeightsUnreadable, match=r"b\.safetensors: ended while model\..* was read"):
        load(tmp_path, spec, ops)


def test_running_out_of_memory_is_named_and_leaves_the_gpu_usable(device, ops, tmp_path):
    with pytest.raises(GpuOutOfMemory, match="for the weights: the GPU has not enough"):
        ops.weight_arena(1 << 49)
    spec, tensors = write(tmp_path, ODD, BF16)
    held = allocate((device.free_bytes() - (64 << 20),), np.uint8, "what holds the rest")
    with pytest.raises(GpuOutOfMemory, match="buffers of 8388608 bytes for reading weights"):
        copy_engine.CudaCopyEngine(device, 16)
    del held
    assert_equal(load(tmp_path, spec, ops), spec, tensors)


def test_storage_of_another_size_is_refused(ops):
    weight = WeightSpec("w", (8, 8), (), "projection")
    with pytest.raises(ShapeError, match="w takes 8192 bytes of the arena, not 8190"):
        ops.weight(weight, ops.weight_arena(8190))


@pytest.mark.parametrize("config", [ODD, LARGE, BY_HEADS], ids=["odd", "large", "by heads"])
def test_random_weights_are_the_cpus_to_the_bit(ops, config):
    spec = spec_of(config)
    if config is LARGE:
        spec = replace(spec, vocab=3001)  # enough, and the CPU is slow
    on_gpu, on_cpu = (Weights(device_ops, declare(spec)) for device_ops in (ops, CpuOps()))
    on_gpu.randomize(7)
    on_cpu.randomize(7)
    for weight in declare(spec):
        name, permutation = weight.name, fused_permutation(weight.rows)
        if weight.is_matrix:
            rows = reference.embedding(np.arange(weight.shape[0]), on_cpu[name])
            found, expected = to_host(on_gpu[name].storage), pack(rows.astype(BF16), permutation)
        else:
            found, expected = to_host(on_gpu[name]), np.empty(weight.shape, BF16)
            expected[permuted_rows(weight.shape[0], permutation)] = on_cpu[name].astype(BF16)
        assert np.array_equal(found.view(np.uint16), expected.view(np.uint16)), name


def test_sixteen_gigabytes_of_random_weights_take_less_than_a_second(device, ops):
    import time

    from wisp_plan.presets import shape_spec

    spec = shape_spec("llama-3-8b")
    if device.free_bytes() < 18 << 30:
        pytest.skip("the GPU has less than 18 GiB free")
    began_s = time.monotonic()
    weights = Weights(ops, declare(spec))
    weights.randomize(1)
    took_s = time.monotonic() - began_s
    print(f"{weights.arena.nbytes / 1e9:.1f} GB of random weights in {took_s:.3f} s")
    assert took_s < 1
