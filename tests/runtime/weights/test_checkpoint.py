"""Reading checkpoints: every dtype and layout, and each way in which a folder can be wrong."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.sources.resolve import resolve

OPS = CpuOps(threads=1)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "vocab_size": 70,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def tensors_of(folder, dtype=np.float32):
    random = np.random.default_rng(1)
    expected = expected_tensors(read_spec(folder))
    return {tensor.name: random.standard_normal(tensor.shape).astype(dtype) for tensor in expected}


def load_from(folder, progress=None):
    return load_model(folder, read_spec(folder), OPS, progress)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_stored_dtype_arrives_as_the_same_numbers(folder, dtype):
    tensors = tensors_of(folder, dtype)
    save_file(tensors, folder / "model.safetensors")
    table = load_from(folder)._embeddings
    wanted = tensors["model.embed_tokens.weight"].astype(np.float32)
    np.testing.assert_array_equal(OPS.embedding(np.arange(70), table), wanted)


def test_shards_hold_the_same_model_as_one_file(folder):
    tensors = tensors_of(folder)
    names = list(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in files.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    index = {name: file for file, some in files.items() for name in some}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    sharded = load_from(folder)
    save_file(tensors, folder / "model.safetensors")
    whole = load_from(folder)
    np.testing.assert_array_equal(sharded._embeddings.tiles, whole._embeddings.tiles)
    np.testing.assert_array_equal(sharded._head.tiles, whole._head.tiles)


def test_progress_counts_every_byte_once_and_in_order(folder):
    tensors = tensors_of(folder)
    save_file(tensors, folder / "model.safetensors")
    seen = []
    load_from(folder, lambda *now: seen.append(now))
    total = sum(values.nbytes for values in tensors.values())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def without(name):
    return lambda tensors: tensors.pop(name)


def reshaped(name):
    return lambda tensors: tensors.update({name: tensors[name][:-1].copy()})


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without(DOWN), rf"missing: {DOWN}"),
        (reshaped(DOWN), rf"{DOWN} is \[47, 80\], must be \[48, 80\]"),
        (lambda t: t.update({DOWN: t[DOWN].astype(np.int8)}), rf"{DOWN} is I8"),
    ],
)
def test_tensors_that_are_not_the_models_are_named(folder, damage, says):
    tensors = tensors_of(folder)
    damage(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsUnreadable, match=says):
        load_from(folder)


@pytest.mark.parametrize("kept", [0, 5, 100, 3000, -1])
def test_a_truncated_file_is_caught_before_memory_is_taken(folder, monkeypatch, kept):
    save_file(tensors_of(folder), folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:kept])
    monkeypatch.setattr(CpuOps, "weight_arena", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(WeightsUnreadable, match=r"model\.safetensors"):
        load_from(folder)


def test_a_file_cut_short_while_it_is_read_ends_in_an_error_not_a_crash(folder, monkeypatch):
    """A memory map would kill the process here."""
    save_file(tensors_of(folder), folder / "model.safetensors")
    arena = CpuOps.weight_arena

    def cut_then_allocate(self, elements):
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(9000)
        return arena(self, elements)

    monkeypatch.setattr(CpuOps, "weight_arena", cut_then_allocate)
    with pytest.raises(WeightsUnreadable, match=r"ended while .* was read"):
        load_from(folder)


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        (None, ModelNotFound, "is not there"),
        ("{", WeightsUnreadable, "not JSON"),
        (
            json.dumps(CONFIG | {"architectures": ["MambaForCausalLM"]}),
            ModelUnsupported,
            "MambaForCausalLM is not supported",
        ),
    ],
)
def test_a_config_that_cannot_run_is_refused(folder, config, error, says):
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config)
    with pytest.raises(error, match=says):
        read_spec(folder)


def test_a_folder_without_weights_is_not_a_model(folder):
    with pytest.raises(ModelNotFound, match="no safetensors file"):
        load_from(folder)


def test_a_folder_is_found_by_path_and_by_file_uri(tmp_path):
    spaced = tmp_path / "a model"
    spaced.mkdir()
    assert resolve(str(spaced), None, tmp_path) == spaced
    assert resolve(f"file://{str(spaced).replace(' ', '%20')}", None, tmp_path) == spaced


def test_paths_that_are_no_folder_say_what_to_do(tmp_path):
    with pytest.raises(ModelNotFound, match="hf://org/name"):
        resolve("org/name", None, tmp_path)
