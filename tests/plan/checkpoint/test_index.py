"""Checkpoints of one file and of many, on disk and over ranges of bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from wisp_plan.checkpoint.directory import read_config, read_directory, read_file
from wisp_plan.checkpoint.index import INDEX_FILE, Source, read_tensor_index
from wisp_plan.errors import (
    CheckpointMissing,
    ConfigDamaged,
    ConfigInvalid,
    ConfigMissing,
    FileTruncated,
    HeaderInvalid,
    UnknownArchitecture,
)

A, B = np.arange(6, dtype="<f4").reshape(2, 3), np.ones((4,), "<f2")
SHARD_1, SHARD_2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WEIGHT_MAP = {"a": SHARD_1, "b": SHARD_2}


def write_shards(folder: Path, weight_map: object = None) -> None:
    save_file({"a": A}, folder / SHARD_1)
    save_file({"b": B}, folder / SHARD_2)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map or WEIGHT_MAP}))


def test_a_folder_with_one_file_is_read(tmp_path):
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors")
    tensors = read_directory(tmp_path)
    assert set(tensors.by_name) == {"a", "b"}
    assert tensors.files == ("model.safetensors",)
    assert (len(tensors), tensors.elements, tensors.tensor_bytes) == (2, 10, 32)
    assert tensors.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    info = tensors.by_name["a"]
    assert (tmp_path / info.file).read_bytes()[info.start : info.end] == A.tobytes()


def test_a_folder_with_shards_is_read_by_its_index(tmp_path):
    write_shards(tmp_path)
    tensors = read_directory(tmp_path)
    assert {info.name: info.file for info in tensors} == WEIGHT_MAP
    assert tensors.elements == 10


def test_the_single_file_outranks_an_index_as_in_transformers(tmp_path):
    write_shards(tmp_path)
    save_file({"c": A}, tmp_path / "model.safetensors")
    assert set(read_directory(tmp_path).by_name) == {"c"}


def test_the_only_safetensors_file_may_have_any_name(tmp_path):
    save_file({"a": A}, tmp_path / "weights.safetensors")
    assert read_directory(tmp_path).files == ("weights.safetensors",)


def test_files_beside_those_of_the_index_are_left_alone(tmp_path):
    write_shards(tmp_path)
    save_file({"a": A}, tmp_path / "consolidated.safetensors")  # as Mistral's repositories have
    assert len(read_directory(tmp_path)) == 2


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "has no safetensors file. Point at"),
        (["pytorch_model.bin"], "only pytorch_model.bin"),
        (["config.json", "model.gguf"], "Serve the file itself: "),
        ([SHARD_1, SHARD_2], f"2 .safetensors files but no {INDEX_FILE}"),
    ],
)
def test_the_error_of_a_folder_without_a_checkpoint_lists_its_files(tmp_path, files, said):
    for name in files:
        (tmp_path / name).write_bytes(save({"a": A}))
    with pytest.raises(CheckpointMissing) as caught:
        read_directory(tmp_path)
    assert said in caught.value.message


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointMissing, match="nowhere is not a folder"):
        read_directory(tmp_path / "nowhere")


def test_a_missing_shard_is_named(tmp_path):
    write_shards(tmp_path)
    (tmp_path / SHARD_2).unlink()
    with pytest.raises(CheckpointMissing, match=f"1 of 2 files .* missing: {SHARD_2}"):
        read_directory(tmp_path)


def test_a_truncated_shard_is_named_with_the_bytes_it_lacks(tmp_path):
    write_shards(tmp_path)
    data = (tmp_path / SHARD_1).read_bytes()
    (tmp_path / SHARD_1).write_bytes(data[:-5])
    with pytest.raises(FileTruncated, match=f"{SHARD_1}: 5 bytes") as caught:
        read_directory(tmp_path)
    assert caught.value.missing_bytes == 5


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(CheckpointMissing, match="No such file"):
        read_file(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": SHARD_1, "b": SHARD_1}, f"says that b is in {SHARD_1}, but it is in none"),
        ({"a": SHARD_2, "b": SHARD_1}, f"says that a is in {SHARD_2}, but it is in {SHARD_1}"),
        ({"a": SHARD_1, "b": SHARD_2, "c": SHARD_2}, "says that c is in"),
        ({"a": "../" + SHARD_1}, "in the same folder"),
        ({"a": "/etc/passwd"}, "in the same folder"),
        ({"a": "model.bin"}, ".safetensors"),
        ({"a": 3}, "a lies in '3'"),
    ],
)
def test_an_index_that_contradicts_the_files_is_refused(tmp_path, weight_map, said):
    write_shards(tmp_path, weight_map)
    with pytest.raises(HeaderInvalid) as caught:
        read_directory(tmp_path)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "index", [b"", b"{", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": [1]}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_index_is_refused(tmp_path, index):
    (tmp_path / INDEX_FILE).write_bytes(index)
    with pytest.raises(HeaderInvalid, match=INDEX_FILE):
        read_directory(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    write_shards(tmp_path)
    save_file({"a": A, "b": B}, tmp_path / SHARD_2)
    with pytest.raises(HeaderInvalid, match=f"tensor a is in both {SHARD_1} and {SHARD_2}"):
        read_directory(tmp_path)


def test_a_remote_checkpoint_is_read_by_ranges_alone():
    files = {SHARD_1: save({"a": A}), SHARD_2: save({"b": B})}
    opened = []

    def open_file(name: str) -> Source:
        opened.append(name)
        data = files[name]
        return Source(lambda offset, length: data[offset : offset + length], len(data))

    tensors = read_tensor_index(open_file, json.dumps({"weight_map": WEIGHT_MAP}).encode())
    assert {info.name for info in tensors} == {"a", "b"}
    assert opened == [SHARD_1, SHARD_2]


def test_a_remote_file_that_is_not_there_is_named():
    def open_file(name: str) -> Source:
        raise FileNotFoundError(name)

    with pytest.raises(CheckpointMissing, match=r"model\.safetensors is not there"):
        read_tensor_index(open_file)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, ConfigMissing, "is not there"),
        (b"{", ConfigDamaged, "is not JSON"),
        (b"[]", ConfigInvalid, "expected an object"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_named(tmp_path, text, error, said):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigInvalid, match=said) as caught:
        read_config(tmp_path)
    assert type(caught.value) is error
    assert f"{tmp_path}/config.json" in caught.value.message
    assert caught.value.message.endswith(".")


def test_a_key_that_cannot_run_is_named_with_its_file(tmp_path, config_of):
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen3-0.6b", architectures=["Mystery"])))
    with pytest.raises(UnknownArchitecture) as caught:
        read_config(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path}/config.json: architecture Mystery is not supported")
    assert caught.value.key == "architectures"


def test_a_config_file_is_parsed(tmp_path, config_of, spec_of):
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen3-0.6b")))
    assert read_config(tmp_path) == spec_of("qwen3-0.6b")


BARE = {"embed_tokens.weight": A, "layers.0.input_layernorm.weight": B, "norm.weight": B}


@pytest.mark.parametrize(
    ("stored", "head"),
    [
        (BARE, "embed_tokens.weight"),  # Qwen3-Embedding
        (BARE | {"lm_head.weight": A + 1}, "lm_head.weight"),
    ],
)
def test_a_model_stored_without_its_head_has_the_names_of_one_with_it(tmp_path, stored, head):
    save_file(stored, tmp_path / "model.safetensors")
    tensors = read_directory(tmp_path)
    assert set(tensors.by_name) == {f"model.{name}" for name in BARE} | {"lm_head.weight"}
    assert all(tensor.name == name for name, tensor in tensors.by_name.items())
    raw = {tensor.name: tensor for tensor in tensors}
    assert tensors.by_name["lm_head.weight"].start == raw[head].start
    assert tensors.elements == sum(values.size for values in stored.values())  # none counts twice


def test_names_with_the_prefix_stay_as_they_are(tmp_path):
    names = {f"model.{name}": values for name, values in BARE.items()}
    save_file(names | {"embed_tokens.weight": A}, tmp_path / "model.safetensors")
    assert set(read_directory(tmp_path).by_name) == {*names, "embed_tokens.weight"}
