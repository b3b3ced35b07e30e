"""Weights held as codes on the CPU: the numbers of float32, and nearly its sums."""

import numpy as np
import pytest
from quantized_checkpoints import FORMATS
from safetensors.numpy import save_file
from tiny_gguf import WIDE, write_gguf

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.families.reader import ConfigReader
from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_plan.quantization.config import read_quantization
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_plan.weights.compact import compact_bytes, describe_compact
from wisp_plan.weights.held import COMPACT, hold
from wisp_plan.weights.stored import as_stored
from wisp_runtime.models.load import open_checkpoint, read_spec
from wisp_runtime.ops.cpu.compact import CompactMatrix
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.reader import WeightReader

FILE = "model.safetensors"


LAYERS, COLUMNS = {"q_proj": 256, "k_proj": 64}, 96


def write(folder, name):
    """Write the two layers of one weight in a format; return its section."""
    section, writer = FORMATS[name]
    random, stored = np.random.default_rng(7), {}
    for layer, rows in LAYERS.items():
        tensors = writer(random, rows, COLUMNS)[0]
        stored |= {layer + suffix: values for suffix, values in tensors.items()}
    save_file(stored, folder / FILE)
    return section


def fused():
    sources = stacked(*((f"{layer}.weight", (rows, COLUMNS)) for layer, rows in LAYERS.items()))
    return WeightSpec("qkv.weight", (sum(LAYERS.values()), COLUMNS), sources, "projection")


def load(folder, section, quantization):
    tensors = read_file(folder / FILE).by_name
    config = read_quantization(ConfigReader({"quantization_config": section}))
    weights, ops = hold(as_stored([fused()], tensors, config), quantization, ()), CpuOps(threads=1)
    held = Weights(ops, weights)
    chunks = plan_quantized(weights, tensors, 1 << 14)
    with Files(folder, [FILE]) as files, WeightReader(files, chunks, held, ops.uploader(0)) as reader:
        reader.wait(lambda *_: None)
    return held["qkv.weight"], weights


@pytest.mark.parametrize("name", FORMATS)
def test_every_stored_format_keeps_its_numbers(tmp_path, name):
    section = write(tmp_path, name)
    held, weights = load(tmp_path, section, COMPACT)
    expected, _ = load(tmp_path, section, "bf16")
    ops, rows = CpuOps(threads=1), np.arange(expected.outputs)
    assert isinstance(held, CompactMatrix) == (weights[0].compact is not None)
    np.testing.assert_array_equal(ops.embedding(rows, held), ops.embedding(rows, expected))
    x = np.random.default_rng(1).standard_normal((3, expected.inputs)).astype(np.float32)
    assert_close(ops.linear(x, held), ops.linear(x, expected), x, ops.embedding(rows, expected))


def assert_close(found, expected, x, weights):
    """Float32 sums in another order: within 1e-6 of the sum of the products' sizes."""
    bound = np.abs(x) @ np.abs(weights).T
    assert (np.abs(found - expected) <= 1e-6 * bound + 1e-30).all()


def models(path):
    spec = read_spec(path)
    ops = CpuOps(threads=1)
    return open_checkpoint(path, spec).held(COMPACT, ()).load(ops), open_checkpoint(path, spec).load(ops)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_every_type_of_block_keeps_its_numbers(tmp_path, kind):
    write_gguf(tmp_path / "m.gguf", sizes=WIDE, kinds={"blk.0": kind, "token_embd": kind})
    compact, wide = models(tmp_path / "m.gguf")
    ops = CpuOps(threads=1)
    names = (
        "embeddings.weight",
        *(f"layers.0.{part}.weight" for part in ("qkv", "output", "gate_up", "down")),
    )
    for name in names:
        held, expected = compact.weights[name], wide.weights[name]
        assert isinstance(held, CompactMatrix)
        rows = np.arange(expected.outputs)
        np.testing.assert_array_equal(ops.embedding(rows, held), ops.embedding(rows, expected))
    assert not isinstance(compact.weights["layers.1.qkv.weight"], CompactMatrix)  # F32 in the file


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 40])
@pytest.mark.parametrize("kinds", [{"attn": "Q8_0"}, {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K"}])
def test_products_are_those_of_float32_for_any_number_of_rows_and_threads(tmp_path, rows, kinds):
    write_gguf(tmp_path / "m.gguf", sizes=WIDE, kinds=kinds)
    compact, wide = models(tmp_path / "m.gguf")
    name = "layers.1.qkv.weight"
    expected = wide.weights[name]
    x = np.random.default_rng(1).standard_normal((rows, expected.inputs)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(expected.outputs).astype(np.float32)
    ops = CpuOps(threads=1)
    weights = ops.embedding(np.arange(expected.outputs), expected)
    for threads in (1, 2):
        found = CpuOps(threads=threads).linear(x, compact.weights[name], bias)
        assert_close(found - bias, ops.linear(x, expected, bias) - bias, x, weights + np.abs(bias)[:, None])


def test_the_bytes_are_those_of_the_arena_and_a_third_of_float32(tmp_path):
    write_gguf(tmp_path / "m.gguf", sizes=WIDE, kinds={"attn": "Q4_K", "ffn": "Q8_0", "token_embd": "Q8_0"})
    compact, wide = models(tmp_path / "m.gguf")
    weights = open_checkpoint(tmp_path / "m.gguf", read_spec(tmp_path / "m.gguf")).held(COMPACT, ()).weights
    codes, scales = compact_bytes(weights)
    assert compact.weights.arena.nbytes - (codes + scales) <= 256 * len(weights)  # padding of float32 ones
    assert compact.weights.arena.nbytes < 0.36 * wide.weights.arena.nbytes
    assert describe_compact(weights) == (
        "Q8_0 (8.5 bits) in codes of a byte; Q4_K (4.5 bits) in codes of a byte; others float32"
    )
