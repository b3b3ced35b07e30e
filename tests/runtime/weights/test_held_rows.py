"""Quantized layers on a device that holds them quantized: every format, fused, in chunks of every size."""

from types import SimpleNamespace

import numpy as np
import pytest
from quantized_checkpoints import E4M3, FORMATS, exponents, fp8, gptq, nvfp4, packed
from safetensors.numpy import save_file
from tiny_gguf import WIDE, write_gguf

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.config import read_quantization
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.quantization.packed_scheme import packed_scheme
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_plan.weights.held import hold
from wisp_plan.weights.layout import held_bytes
from wisp_plan.weights.stored import as_stored
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.models.load import load_model, open_checkpoint, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cuda.weights.pipelined_uploader import PipelinedUploader
from wisp_runtime.ops.protocol.weights.upload import SLACK_BYTES, QuantizedRows
from wisp_runtime.ops.reference.quantized_packing import QuantizedMatrix, dequantize
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.reader import WeightReader

FILE = "model.safetensors"
LAYERS = {"q_proj": 256, "k_proj": 128}


class HoldingDevice:
    """A device whose buffers are numpy's and whose weights are lists of the rows that arrived."""

    def __init__(self, chunk_bytes):
        self.chunk_bytes, self.is_finite = chunk_bytes, True
        self.buffers = [np.empty(chunk_bytes + SLACK_BYTES + 1, np.uint8)[1:] for _ in range(3)]

    def weight_bytes(self, weight):
        return sum(held_bytes(weight))

    def weight_arena(self, size_bytes):
        return np.zeros(size_bytes, np.uint8)

    def weight(self, weight, storage):
        return SimpleNamespace(numbers=weight.held.numbers, rows=[None] * weight.shape[0])

    def row_permutation(self, weight):
        return "plain"

    def uploader(self, total_bytes):
        return PipelinedUploader(self, threads=2, chunk_bytes=self.chunk_bytes)

    def wait(self, slot):
        pass

    def send(self, slot, rows, destination):
        assert isinstance(rows, QuantizedRows)
        if destination.weight.numbers == "e4m3":
            self.is_finite &= not np.isnan(rows.codes.view(E4M3).astype(np.float32)).any()
        assert sum(0 if array is None else array.nbytes for array in rows.arrays) <= self.chunk_bytes
        for index in range(destination.shape[0]):
            row = rows[index : index + 1]
            copies = (None if array is None else array.copy() for array in row.arrays)
            assert destination.weight.rows[destination.first + index] is None
            destination.weight.rows[destination.first + index] = QuantizedRows(*copies)

    def close(self):
        return self.is_finite


def load(folder, section, writer, columns, chunk_bytes=1 << 20, layers=LAYERS):
    """Write layers and read them as they are held; return that format, the matrix and the weights."""
    random, stored, meant = np.random.default_rng(7), {}, []
    for layer, rows in layers.items():
        tensors, weights = writer(random, rows, columns)
        meant.append(weights)
        stored |= {layer + suffix: values for suffix, values in tensors.items()}
    save_file(stored, folder / FILE)
    tensors = read_file(folder / FILE).by_name
    quantization = read_quantization(ConfigReader({"quantization_config": section}))
    sources = stacked(*((f"{layer}.weight", (rows, columns)) for layer, rows in layers.items()))
    spec = WeightSpec("qkv.weight", (sum(layers.values()), columns), sources, "projection")
    weights = hold(as_stored([spec], tensors, quantization), "auto", tuple(PACKED_FORMATS))
    device = HoldingDevice(chunk_bytes)
    held, chunks = Weights(device, weights), plan_quantized(weights, tensors, chunk_bytes)
    with Files(folder, [FILE]) as files, WeightReader(files, chunks, held, device.uploader(0)) as reader:
        reader.wait(lambda *_: None)
    return weights[0].held, matrix_of(weights[0].held, held["qkv.weight"]), np.concatenate(meant)


def matrix_of(held, rows):
    codes, *rest = (
        None if arrays[0] is None else np.concatenate(arrays)
        for arrays in zip(*(row.arrays for row in rows.rows), strict=True)
    )
    if held.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
    return QuantizedMatrix(codes, *rest)


def held_as(name):
    section, _ = FORMATS[name]
    quantization = read_quantization(ConfigReader({"quantization_config": section}))
    return packed_scheme(quantization.scheme_of("q_proj"))


def assert_means(held, matrix, meant):
    assert np.all(dequantize(held, matrix) == meant)


HELD = [name for name in FORMATS if held_as(name)]


def test_formats_of_every_kind_are_held():
    assert {held_as(name).name for name in HELD} >= {
        "fp8",
        "int8",
        "int4",
        "int4_g32",
        "int4_g32_zero",
        "mxfp4",
        "nvfp4",
    }


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("chunk_bytes", [1 << 15, 1 << 20])  # several chunks a layer, and one
def test_every_format_is_held_without_loss(tmp_path, name, chunk_bytes):
    columns = 128 if "channel" in name or "8 bits" in name else 96
    held, matrix, meant = load(tmp_path, *FORMATS[name], columns, chunk_bytes)
    if "ct nvfp4" in name:  # the reciprocal of the tensor's scale is rounded once
        np.testing.assert_allclose(dequantize(held, matrix), meant, rtol=2e-7)
    else:
        assert_means(held, matrix, meant)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", ["ct fp8 channel", "fp8 tensor"])
def test_a_weight_that_is_nan_is_named_after_all_are_stored(tmp_path, name, code):
    section, writer = FORMATS[name]

    def write(random, *shape):
        tensors, meant = writer(random, *shape)
        if shape[0] == LAYERS["k_proj"]:
            tensors[".weight"].view(np.uint8)[-1, -1] = code
        return tensors, meant

    with pytest.raises(WeightsUnreadable, match=r"k_proj\.weight has a weight that is not finite"):
        load(tmp_path, section, write, 128, 1 << 15)


def test_a_device_that_finds_what_the_files_have_not_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(HoldingDevice, "close", lambda _: False)
    with pytest.raises(WeightsUnreadable, match="though those in the files are finite"):
        load(tmp_path, *FORMATS["ct fp8 channel"], 128)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize("columns", [256, 272])  # whole blocks, and a part of one
def test_blocks_of_scales_lie_beside_the_tiles(tmp_path, columns):
    layers = {"q_proj": 256, "k_proj": 64}
    held, matrix, meant = load(tmp_path, FP8, fp8(128, 128, "_scale_inv"), columns, layers=layers)
    assert held.name == "fp8_block"
    assert_means(held, matrix, meant)


def _int4(group):
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@pytest.mark.parametrize(
    ("group", "name"), [(64, "int4_g64"), (128, "int4"), (256, "int4"), (96, "int4_g32")]
)
def test_a_group_becomes_equal_smaller_ones(tmp_path, group, name):
    held, matrix, meant = load(tmp_path, _int4(group), packed(4, group), 768)
    assert held.name == name
    assert_means(held, matrix, meant)


def test_scales_beyond_an_f16_are_held_by_their_row(tmp_path):
    def write(random, *shape):
        tensors, meant = packed(4, 128)(random, *shape)
        tiny = 2.0 ** -random.integers(30, 60, (shape[0], 1))
        tensors[".weight_scale"] = (tensors[".weight_scale"].astype(np.float32) * tiny).astype("bfloat16")
        return tensors, (meant * tiny).astype(np.float32)

    assert_means(*load(tmp_path, _int4(128), write, 256))


def test_an_mxfp4_group_far_below_its_row_is_zero(tmp_path):
    def write(random, *shape):
        tensors, meant = exponents(32, "_scale", "U8", "e2m1")(random, *shape)
        tensors[".weight_scale"][:, 0] = 120 - 27  # others are at least 120
        meant[:, :32] = 0
        return tensors, meant

    section, _ = FORMATS["ct mxfp4"]
    assert_means(*load(tmp_path, section, write, 96))


def test_transposed_tensors_larger_than_a_buffer_are_stored_in_parts(tmp_path):
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    layers = {"q_proj": 512, "k_proj": 384}
    held, matrix, meant = load(tmp_path, section, gptq(4, 128), 256, 1 << 15, layers)
    assert_means(held, matrix, meant)


def test_the_codes_of_numbers_are_kept_as_they_are(tmp_path):
    held, matrix, _ = load(tmp_path, *FORMATS["modelopt nvfp4"], 96)
    tensors, _ = nvfp4("modelopt")(np.random.default_rng(7), 256, 96)
    stored = tensors[".weight"]
    assert held.name == "nvfp4"
    assert np.array_equal(matrix.codes[:256, ::2], stored & 15)


def read_all(device, weights, checkpoint):
    """Read weights of the GGUF file of a checkpoint, and return them."""
    held, chunks = Weights(device, weights), plan_quantized(weights, checkpoint.tensors.by_name, 1 << 20)
    with (
        Files(checkpoint.folder, ["m.gguf"]) as files,
        WeightReader(files, chunks, held, device.uploader(0)) as reader,
    ):
        reader.wait(lambda *_: None)
    return held


def test_a_ggufs_q4_0_is_held_as_int4_with_scales_of_either_sign(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, sizes=WIDE, kinds={"attn": "Q4_0", "ffn": "Q4_K"})
    spec, device = read_spec(path), HoldingDevice(1 << 20)
    checkpoint = open_checkpoint(path, spec).held("auto", tuple(PACKED_FORMATS))
    formats = {weight.name: weight.held for weight in checkpoint.weights}
    assert formats["layers.0.qkv.weight"] is PACKED_FORMATS["int4_g32"]
    assert formats["layers.0.gate_up.weight"] is None  # a Q4_K has minima that are no zero points
    weights = [weight for weight in checkpoint.weights if weight.held]
    held = read_all(device, weights, checkpoint)
    matrix = matrix_of(PACKED_FORMATS["int4_g32"], held["layers.0.qkv.weight"])
    wide = load_model(path, spec, CpuOps(threads=1)).weights["layers.0.qkv.weight"]
    expected = CpuOps(threads=1).embedding(np.arange(wide.outputs), wide)
    assert (matrix.group_scales < 0).any()
    np.testing.assert_array_equal(dequantize(PACKED_FORMATS["int4_g32"], matrix), expected)


def test_a_block_of_gguf_with_a_scale_that_is_no_number_is_named(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, sizes=WIDE, kinds={"attn": "Q4_0", "ffn": "Q4_0"})
    checkpoint = open_checkpoint(path, read_spec(path)).held("auto", tuple(PACKED_FORMATS))
    weights = [weight for weight in checkpoint.weights if weight.held]
    source = next(weight for weight in weights if weight.name == "layers.0.qkv.weight").sources[0].tensor
    stored = checkpoint.tensors.by_name[source]
    data = bytearray(path.read_bytes())
    data[stored.start : stored.start + 2] = np.array([np.inf], np.float16).tobytes()
    path.write_bytes(data)

    with pytest.raises(WeightsUnreadable, match=f"{source}.* a scale that is not finite"):
        read_all(HoldingDevice(1 << 20), weights, checkpoint)
