"""Quantized layers on a device that holds float32, read in small chunks: every format, fused and sharded."""

import re

import numpy as np
import pytest
from quantized_checkpoints import FORMATS
from safetensors.numpy import load_file, save_file

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.errors import TensorsMismatch
from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.config import read_quantization
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.spec.weight import WeightSource, WeightSpec, stacked
from wisp_plan.weights.declaration import shard
from wisp_plan.weights.stored import as_stored
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.dequantize import zero_points_of
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.reader import WeightReader

FILE = "model.safetensors"
LAYERS = {"q_proj": 256, "k_proj": 64}
COLUMNS = 96


def write(folder, name, layers=LAYERS, columns=COLUMNS):
    """Write layers in a format; return its section, and the weights by layer."""
    section, writer = FORMATS[name]
    random, stored, meant = np.random.default_rng(7), {}, {}
    for layer, rows in layers.items():
        tensors, meant[layer] = writer(random, rows, columns)
        stored |= {layer + suffix: values for suffix, values in tensors.items()}
    save_file(stored, folder / FILE)
    return section, meant


def load(folder, section, declared, chunk_bytes=1 << 14):
    """Read the weights ``declared`` in small chunks; return the rows of the first."""
    tensors = read_file(folder / FILE).by_name
    quantization = read_quantization(ConfigReader({"quantization_config": section}))
    weights, ops = as_stored(declared, tensors, quantization), CpuOps(threads=1)
    held = Weights(ops, weights)
    chunks = plan_quantized(weights, tensors, chunk_bytes)
    with Files(folder, [FILE]) as files, WeightReader(files, chunks, held, ops.uploader(0)) as reader:
        reader.wait(lambda *_: None)
    matrix = held[weights[0].name]
    return ops.embedding(np.arange(matrix.outputs), matrix)


def fused(layers=LAYERS, columns=COLUMNS):
    sources = stacked(*((f"{layer}.weight", (rows, columns)) for layer, rows in layers.items()))
    return WeightSpec(
        "qkv.weight", (sum(layers.values()), columns), sources, "projection", shard_axis=0, shard_unit=32
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_weights_that_it_means(tmp_path, name):
    section, meant = write(tmp_path, name)
    rows = load(tmp_path, section, [fused()])
    np.testing.assert_array_equal(rows, np.concatenate([meant[layer] for layer in LAYERS]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_have_half_of_each_layer(tmp_path, name, rank):
    section, meant = write(tmp_path, name)
    rows = load(tmp_path, section, shard([fused()], rank, 2))
    halves = [np.split(meant[layer], 2)[rank] for layer in LAYERS]
    np.testing.assert_array_equal(rows, np.concatenate(halves))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_have_half_of_each_column(tmp_path, name, rank):
    """Of down and output projections; in act-order a rank's columns are of any group."""
    section, meant = write(tmp_path, name, {"down_proj": 64}, 2 * COLUMNS)
    whole = WeightSpec(
        "down.weight",
        (64, 2 * COLUMNS),
        stacked(("down_proj.weight", (64, 2 * COLUMNS))),
        "projection",
        shard_axis=1,
    )
    rows = load(tmp_path, section, shard([whole], rank, 2))
    np.testing.assert_array_equal(rows, np.split(meant["down_proj"], 2, axis=1)[rank])


ONE_BY_ONE = [name for name in FORMATS if not any(word in name for word in ("block", "zeros", "awq"))]


@pytest.mark.parametrize("name", ONE_BY_ONE)  # in the others rows share a scale, or a word
def test_rows_that_alternate_are_parted(tmp_path, name):
    """Gate and up of gpt-oss lie row by row."""
    section, meant = write(tmp_path, name, {"gate_up": 256})
    shape = (256, COLUMNS)
    sources = tuple(
        WeightSource("gate_up.weight", shape, (range(first, 256, 2), range(COLUMNS)), (128 * first, 0))
        for first in range(2)
    )
    rows = load(tmp_path, section, [WeightSpec("gate_up", shape, sources, "projection")])
    np.testing.assert_array_equal(rows, np.concatenate([meant["gate_up"][::2], meant["gate_up"][1::2]]))


@pytest.mark.parametrize("name", ["fp8 block", "ct fp8 block"])
def test_the_last_block_of_rows_and_columns_may_be_short(tmp_path, name):
    section, meant = write(tmp_path, name, {"q_proj": 80}, 72)
    rows = load(tmp_path, section, [fused({"q_proj": 80}, 72)])
    np.testing.assert_array_equal(rows, meant["q_proj"])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_none_is_named(tmp_path, wrong):
    section, _ = write(tmp_path, "ct int8")
    tensors = load_file(tmp_path / FILE)
    tensors["k_proj.weight_scale"][3] = wrong
    save_file(tensors, tmp_path / FILE)
    with pytest.raises(
        WeightsUnreadable, match=re.escape("k_proj.weight_scale has a scale that is not finite")
    ):
        load(tmp_path, section, [fused()])


def test_rows_that_share_a_word_of_zero_points_cannot_be_parted(tmp_path):
    section, _ = write(tmp_path, "awq", {"gate_up": 256})
    source = WeightSource("gate_up.weight", (256, COLUMNS), (range(1, 256, 2), range(COLUMNS)), (0, 0))
    with pytest.raises(TensorsMismatch, match="inside a block of 8"):
        load(tmp_path, section, [WeightSpec("gate_up", (128, COLUMNS), (source,), "projection")])


def test_layers_that_are_computed_together_must_be_stored_alike(tmp_path):
    section, _ = write(tmp_path, "gptq")
    section = section | {"dynamic": {"+:.*k_proj": {"bits": 8}}}
    said = "k_proj.weight is stored as gptq int8, and q_proj.weight, .*, as gptq int4"
    with pytest.raises(TensorsMismatch, match=said):
        load(tmp_path, section, [fused()])


@pytest.mark.parametrize(("kind", "bits", "ones"), [("int4", 4, 0x11111111), ("int8", 8, 0x01010101)])
def test_gptq_v1_takes_one_from_all_zero_points_of_a_word_at_once(kind, bits, ones):
    count = 32 // bits
    zeros = np.array([0, 5, *[8] * (count - 2)], np.uint32)
    word = np.bitwise_or.reduce(zeros << np.arange(count, dtype=np.uint32) * np.uint32(bits)) - np.uint32(
        ones
    )
    scheme = Scheme("gptq", kind, 1, 128, is_packed=True, has_zero_points=True, stores_zero_minus_one=True)

    read = zero_points_of(scheme, np.array([[word]], np.uint32).view(np.int32), count)

    assert read[:, 0].tolist() == zeros.tolist()
