"""A model served from its GGUF file computes what it does from the safetensors that it converts to."""

import json
import shutil

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_gguf import EXPERTS, HEADS, TOKENS, WIDE, write_gguf

from wisp_plan.checkpoint.directory import read_generation_config
from wisp_plan.gguf.config import _llama3_factor
from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.config import ServeConfig
from wisp_runtime.convert.gguf import convert
from wisp_runtime.engine import startup
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable
from wisp_runtime.models.load import load_model, open_checkpoint, read_spec
from wisp_runtime.ops.cpu.compact import CompactMatrix
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.server.text.tokenizer import load_tokenizer, read_template
from wisp_runtime.sources.resolve import resolve
from wisp_runtime.weights import quantized_chunks
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import plan
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.reader import WeightReader

MIXED = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q5_K", "token_embd": "Q8_0"}
MIXED |= {"ffn_up": "IQ4_NL", "ffn_gate": "Q2_K"}


def weights_of(path):
    return load_model(path, read_spec(path), CpuOps(threads=1)).weights.arena.view(np.float32)


def assert_equals_its_conversion(path, tmp_path):
    folder = convert(path, tmp_path / "converted", dtype="f32").folder
    spec = read_spec(folder)
    assert read_spec(path).layers == spec.layers
    np.testing.assert_array_equal(weights_of(path), weights_of(folder))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3moe"])
def test_every_family_loads_from_the_file_itself(tmp_path, architecture, kind):
    kind = gguf.GGMLQuantizationType[kind]
    write_gguf(tmp_path / "m.gguf", architecture=architecture, kind=kind)
    assert_equals_its_conversion(tmp_path / "m.gguf", tmp_path)


def test_tensors_of_one_weight_may_be_of_several_types(tmp_path, monkeypatch):
    """As in every Q4_K_M: Q and K in one type, V in another, and chunks of few rows keep heads whole."""
    monkeypatch.setattr(quantized_chunks, "ROW_STEP", 1)
    monkeypatch.setattr("wisp_runtime.ops.protocol.weights.upload.HostUploader.chunk_bytes", 1 << 10)
    write_gguf(tmp_path / "m.gguf", sizes=WIDE, kinds=MIXED)
    assert_equals_its_conversion(tmp_path / "m.gguf", tmp_path)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_the_weights_are_the_gguf_packages(tmp_path, kind):
    path = tmp_path / "m.gguf"
    write_gguf(path, sizes=WIDE, kinds={"blk.0.attn": kind, "ffn_up": kind})
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    model = load_model(path, read_spec(path), CpuOps(threads=1))
    ops = CpuOps(threads=1)
    up = stored["blk.1.ffn_up.weight"]
    gate_up = model.weights["layers.1.gate_up.weight"]
    rows = ops.embedding(np.arange(WIDE.mlp, 2 * WIDE.mlp), gate_up)
    np.testing.assert_array_equal(rows, gguf.quants.dequantize(up.data, up.tensor_type))
    query = stored["blk.0.attn_q.weight"]
    paired = gguf.quants.dequantize(query.data, query.tensor_type).reshape(HEADS, 32, 2, -1)
    found = ops.embedding(np.arange(HEADS * 64), model.weights["layers.0.qkv.weight"])
    np.testing.assert_array_equal(found, paired.swapaxes(1, 2).reshape(HEADS * 64, -1))


def test_experts_of_a_file_are_the_gguf_packages_and_their_conversion_has_one_each(tmp_path):
    path, ops = tmp_path / "m.gguf", CpuOps(threads=1)
    kinds = {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "IQ4_NL", "ffn_down_exps": "Q6_K"}
    write_gguf(path, architecture="qwen3moe", sizes=WIDE, kinds=kinds)
    assert_equals_its_conversion(path, tmp_path)
    assert read_spec(path).layers[0].ffn.router == RouterSpec(EXPERTS, 2)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    up = stored["blk.1.ffn_up_exps.weight"]
    meant = gguf.quants.dequantize(up.data, up.tensor_type)
    name, rows = "layers.1.experts.gate_up.weight", np.arange(WIDE.mlp, 2 * WIDE.mlp)
    plain, codes = (
        load_model(path, read_spec(path), ops, quantization=held).weights[name]
        for held in ("bf16", "compact")
    )
    for expert in range(EXPERTS):
        np.testing.assert_array_equal(ops.embedding(rows, plain[expert]), meant[expert])
        assert isinstance(codes[expert], CompactMatrix)
        np.testing.assert_allclose(ops.embedding(rows, codes[expert]), meant[expert], rtol=1e-6)
    names = load_file(tmp_path / "converted/model.safetensors")
    assert "model.layers.0.mlp.experts.3.down_proj.weight" in names


def test_two_ranks_hold_the_halves_of_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, sizes=WIDE, kinds={"attn_q": "Q4_K", "attn_output": "Q4_0"})
    spec = read_spec(path)
    whole = load_model(path, spec, CpuOps(threads=1))
    ops = CpuOps(threads=1)

    def rows(weights, name):
        matrix = weights[name]
        return ops.embedding(np.arange(matrix.outputs), matrix)

    halves = []
    for rank in range(2):
        checkpoint = open_checkpoint(path, spec, rank=rank, ranks=2)
        held = Weights(ops, checkpoint.weights)
        fill(held, checkpoint, ops)
        halves.append(held)
    qkv = rows(whole.weights, "layers.0.qkv.weight")
    first, second = (rows(held, "layers.0.qkv.weight") for held in halves)
    np.testing.assert_array_equal(np.concatenate((first[:128], second[:128])), qkv[:256])
    out = [rows(held, "layers.0.output.weight") for held in halves]
    np.testing.assert_array_equal(np.concatenate(out, axis=1), rows(whole.weights, "layers.0.output.weight"))


def fill(held, checkpoint, ops):
    tensors, weights = checkpoint.tensors.by_name, checkpoint.weights
    chunks = [*plan(weights, tensors, 1 << 20), *plan_quantized(weights, tensors, 1 << 20)]
    with (
        Files(checkpoint.folder, checkpoint.tensors.files) as files,
        WeightReader(files, chunks, held, ops.uploader(0)) as reader,
    ):
        reader.wait(lambda *_: None)


def test_tokenizer_template_and_end_tokens_come_from_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, ends={"eot": 5, "eom": 6})
    tokenizer, template = load_tokenizer(path), read_template(path)
    assert tokenizer.decode(tokenizer.encode("hello 12", adds_special=True)) == "hello 12"
    assert tokenizer.end_id == 0
    assert (template.source, template.special_tokens["bos_token"]) == (
        "{{ messages[0].content }}",
        "<|begin|>",
    )
    assert read_generation_config(path).eos_token_ids == (0, 5, 6)
    folder = convert(path, tmp_path / "out").folder
    assert load_tokenizer(folder).tokenizer.to_str() == tokenizer.tokenizer.to_str()


def test_a_tokenizer_beside_the_file_comes_before_its_own(tmp_path):
    write_gguf(tmp_path / "m.gguf", change={"pre": "tekken"})
    with pytest.raises(ModelUnsupported, match=r"splits text by 'tekken'.*Put the model's tokenizer\.json"):
        load_tokenizer(tmp_path / "m.gguf")
    write_gguf(tmp_path / "other.gguf")
    made = convert(tmp_path / "other.gguf", tmp_path / "out").folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made / name, tmp_path / name)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"chat_template": "mine"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(tmp_path / "m.gguf").encode("hello", adds_special=False) == [TOKENS.index("hello")]
    assert read_template(tmp_path / "m.gguf").source == "mine"


def test_a_folder_is_the_model_of_its_only_file(tmp_path):
    write_gguf(tmp_path / "a.gguf")
    assert read_spec(resolve(str(tmp_path), None, tmp_path)) == read_spec(tmp_path / "a.gguf")
    assert resolve(f"file://{tmp_path}/a.gguf", None, tmp_path) == tmp_path / "a.gguf"
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(
        ModelNotFound, match=r"several models in GGUF \(a.gguf, b.gguf\). Name the file: .*a.gguf"
    ):
        read_spec(tmp_path)


def test_the_parts_of_a_split_file_are_one_model(tmp_path):
    names = [f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    last = {"blk.1.ffn_up.weight": np.ones((96, 64), np.float32)}
    write_gguf(tmp_path / names[0], without=last)
    with pytest.raises(ModelNotFound, match="1 of the 2 parts of the model are missing, among them m-00002"):
        read_spec(tmp_path)
    writer = gguf.GGUFWriter(tmp_path / names[1], "llama")
    for name, values in last.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for path in (tmp_path, tmp_path / names[0], tmp_path / names[1]):
        checkpoint = open_checkpoint(path, read_spec(path))
        assert checkpoint.tensors.files == tuple(names)
    assert_equals_its_conversion(tmp_path / names[0], tmp_path)


def test_llama_3s_scaling_of_positions_is_recognised_by_its_factors(tmp_path):
    factors = np.array([_llama3_factor(10000.0 ** (2 * i / 16), 32.0) for i in range(8)], np.float32)
    write_gguf(tmp_path / "m.gguf", more={"rope_freqs.weight": factors})
    (attention,) = {layer.mixer for layer in read_spec(tmp_path / "m.gguf").layers}
    assert (attention.rope.kind, attention.rope.factor, attention.rope.original_max_context) == (
        "llama3",
        32,
        8192,
    )
    factors[3] *= 1.5
    write_gguf(tmp_path / "m.gguf", more={"rope_freqs.weight": factors})
    with pytest.raises(ModelUnsupported, match="rotary embedding is scaled or partial"):
        read_spec(tmp_path / "m.gguf")


def test_linear_scaling_is_read_and_others_are_refused(tmp_path):
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "m.gguf", fields=linear)
    (attention,) = {layer.mixer for layer in read_spec(tmp_path / "m.gguf").layers}
    assert (attention.rope.kind, attention.rope.factor) == ("linear", 4.0)
    write_gguf(tmp_path / "m.gguf", fields=linear | {"llama.rope.scaling.type": "yarn"})
    with pytest.raises(ModelUnsupported, match="rotary embedding is scaled or partial"):
        read_spec(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("options", "expect", "says"),
    [
        ({"architecture": "gemma2"}, ModelUnsupported, "architecture 'gemma2' is not read from GGUF"),
        (
            {"more": {"blk.0.ffn_gate_inp.weight": np.ones((2, 64), np.float32)}},
            ModelUnsupported,
            "ffn_gate_inp",
        ),
        ({"without": ["blk.1.ffn_up.weight"]}, WeightsUnreadable, r"missing: model\.layers\.1\.mlp\.up_proj"),
        (
            {"more": {"output_norm.weight": np.ones(65, np.float32)}},
            WeightsUnreadable,
            r"model\.norm\.weight is \[65\], must be \[64\]",
        ),
    ],
)
def test_a_file_that_is_no_model_of_ours_is_refused_by_name(tmp_path, options, expect, says):
    path = tmp_path / "m.gguf"
    write_gguf(path, **options)
    with pytest.raises(expect, match=says):
        open_checkpoint(path, read_spec(path))


def test_a_scale_that_is_no_number_names_its_tensor(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, kind=gguf.GGMLQuantizationType.Q8_0)
    spec = read_spec(path)
    info = open_checkpoint(path, spec).tensors.by_name["model.layers.1.mlp.down_proj.weight"]
    data = bytearray(path.read_bytes())
    data[info.start : info.start + 2] = b"\x00\x7e"
    path.write_bytes(data)
    with pytest.raises(
        WeightsUnreadable, match=r"m\.gguf: model\.layers\.1\.mlp\.down_proj\.weight has a scale"
    ):
        load_model(path, spec, CpuOps(threads=1))


@pytest.mark.parametrize(
    ("free_bytes", "held"),
    [
        (1 << 30, "float32, dequantized from Q8_0 (8.5 bits)"),
        (
            21_000_000,
            "Q8_0 (8.5 bits) in codes of a byte; others float32",
        ),  # float32 needs 22.8 MB
    ],
)
def test_an_engine_starts_from_the_file_in_float32_or_codes_by_the_memory_there_is(
    tmp_path, monkeypatch, free_bytes, held
):
    write_gguf(tmp_path / "m.gguf", sizes=WIDE, kinds={"attn": "Q8_0", "ffn": "Q8_0", "token_embd": "Q8_0"})
    monkeypatch.setattr("wisp_runtime.ops.cpu.cpu_device.available_bytes", lambda: free_bytes)
    settings = {"max_step_tokens": 1, "max_concurrent": 1, "max_context": 64, "memory_fraction": 1.0}
    config = ServeConfig(model=str(tmp_path / "m.gguf"), device="cpu", threads=1, **settings)
    engine = startup.start(config, lambda _phase: None)
    assert config.name == "m"
    assert engine.ready.ledger["weights"] == held
    assert engine.ready.ledger["fits"]
