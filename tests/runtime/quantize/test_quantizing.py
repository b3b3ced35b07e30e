"""A 16-bit folder in, a compressed-tensors folder out: as it is read again, resumed, and refused."""

import errno
import hashlib
import json
import os
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from small_checkpoint import CONFIG, loaded_rows, tensors_of, write_checkpoint

from wisp_runtime.cli.main import main
from wisp_runtime.errors import ConfigError, DiskFull, ModelUnsupported, WeightsUnreadable
from wisp_runtime.models.load import open_checkpoint, read_spec
from wisp_runtime.quantize import quantizing
from wisp_runtime.quantize.formats import TARGETS
from wisp_runtime.quantize.quantizing import Options, quantize, shipped_text

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
# Half a step of the coarsest number over the largest of a group of normal numbers, with some spare.
ERRORS = {"fp8": 0.04, "int8": 0.01, "int4": 0.15, "nvfp4": 0.15}


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


@pytest.mark.parametrize("to", TARGETS)
def test_the_result_is_read_as_weights_near_the_source(source, tmp_path, to):
    made = quantize(source, tmp_path / "made", Options(to, "rtn", threads=2))
    assert made.layers == 14
    assert made.kept == ()
    for name in ("layers.0.qkv.weight", "layers.1.gate_up.weight", "layers.1.down.weight"):
        meant, read = loaded_rows(source, name), loaded_rows(tmp_path / "made", name)
        assert 0 < np.linalg.norm(read - meant) / np.linalg.norm(meant) < ERRORS[to]


def test_everything_else_is_copied(source, tmp_path):
    quantize(source, tmp_path / "made", Options("fp8"))
    before, after = (tensors_of(folder) for folder in (source, tmp_path / "made"))
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
        np.testing.assert_array_equal(after[name], before[name])
    copies = [(folder / "tokenizer.json").read_bytes() for folder in (source, tmp_path / "made")]
    assert copies[0] == copies[1]
    config = json.loads((tmp_path / "made/config.json").read_text())
    section = config.pop("quantization_config")
    assert config == CONFIG
    assert section["ignore"] == ["lm_head"]
    assert section["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == sorted(
        path.name for path in source.iterdir()
    )


def test_layers_computed_together_share_their_tensor_scale(source, tmp_path):
    """vLLM takes one for Q, K and V, and one for gate and up."""
    quantize(source, tmp_path / "made", Options("nvfp4", "rtn"))
    tensors = tensors_of(tmp_path / "made")
    scales = [tensors[f"model.layers.0.self_attn.{part}_proj.weight_global_scale"] for part in "qkv"]
    assert scales[0] == scales[1] == scales[2]
    largest = max(
        np.abs(value.astype(np.float32)).max()
        for name, value in tensors_of(source).items()
        if re.search(r"layers\.0\.self_attn\.[qkv]_proj\.weight", name)
    )
    assert scales[0][0] == np.float32(448 * 6 / largest)


@pytest.mark.parametrize(
    ("hidden", "inner", "group"),
    [
        (128, 256, 128),
        (64, 192, 64),
        (64, 160, 32),  # one size for all layers: transformers knows no more
        (64, 72, 64),  # no group divides 72
    ],
)
def test_int4_has_the_largest_group_that_quantizes_most(tmp_path, hidden, inner, group):
    write_checkpoint(tmp_path / "source", hidden_size=hidden, intermediate_size=inner)
    quantize(tmp_path / "source", tmp_path / "made", Options("int4", "rtn"))
    section = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]
    (layers,) = section["config_groups"].values()
    assert layers["targets"] == ["Linear"]
    assert layers["weights"]["group_size"] == group
    loaded_rows(tmp_path / "made", "layers.1.down.weight")


def test_columns_that_no_group_divides_stay_as_they_are(tmp_path):
    tensors = write_checkpoint(tmp_path / "source", intermediate_size=72)
    made = quantize(tmp_path / "source", tmp_path / "made", Options("int4", "rtn"))
    assert {kept.layer for kept in made.kept} == {f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1)}
    assert made.kept[0].reason == "its 72 columns do not split into groups of 64"
    name = "model.layers.1.mlp.down_proj.weight"
    np.testing.assert_array_equal(tensors_of(tmp_path / "made")[name], tensors[name])
    loaded_rows(tmp_path / "made", "layers.1.down.weight")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_scales_of_int4_have_the_source_s_dtype_where_it_has_16_bits(tmp_path, dtype):
    write_checkpoint(tmp_path / "source", dtype)
    quantize(tmp_path / "source", tmp_path / "made", Options("int4", "rtn"))
    scale = tensors_of(tmp_path / "made")[f"{Q_PROJ}_scale"]
    assert scale.dtype == (np.float16 if dtype == np.float16 else ml_dtypes.bfloat16)
    loaded_rows(tmp_path / "made")


def test_many_files_have_an_index_and_open_as_one_model(source, tmp_path):
    made = quantize(source, tmp_path / "made", Options("nvfp4", "rtn", shard_bytes=20_000))
    assert made.files == 3
    open_checkpoint(tmp_path / "made", read_spec(tmp_path / "made"))
    quantize(source, tmp_path / "single", Options("nvfp4", "rtn"))
    np.testing.assert_array_equal(loaded_rows(tmp_path / "made"), loaded_rows(tmp_path / "single"))


def test_an_interrupted_run_goes_on_to_the_same_bytes(source, tmp_path, monkeypatch):
    options = Options("nvfp4", "rtn", shard_bytes=20_000)
    quantize(source, tmp_path / "at once", options)
    written, write = [], quantizing.write_shard

    def interrupted(path, *rest):
        if len(written) == 2:
            (path.parent / f"{path.name}.partial").write_bytes(b"half of it")
            raise KeyboardInterrupt
        written.append(path)
        write(path, *rest)

    monkeypatch.setattr(quantizing, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "resumed", options)
    assert not (tmp_path / "resumed/config.json").exists()
    monkeypatch.setattr(quantizing, "write_shard", write)
    reported = []
    made = quantize(source, tmp_path / "resumed", options, lambda done, total: reported.append((done, total)))
    assert made.resumed == 2
    assert reported[0][0] > 0
    assert reported[-1][0] == reported[-1][1]
    assert digests(tmp_path / "resumed") == digests(tmp_path / "at once")
    assert not (tmp_path / "resumed/.wisp-quantize").exists()


def unfinished(source, target, monkeypatch):
    write = quantizing.write_shard

    def interrupted(path, *rest):
        write(path, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(quantizing, "write_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quantize(source, target, Options("fp8"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda source: Options("int8"), "other format."),
        (lambda source: Options("fp8", "awq"), "other method, calibration text."),
        (lambda source: Options("fp8", shard_bytes=1 << 21), "other shard size."),
        (lambda source: (write_checkpoint(source, seed=4), Options("fp8"))[1], "other source."),
    ],
)
def test_an_unfinished_folder_of_other_settings_is_refused(source, tmp_path, monkeypatch, change, named):
    unfinished(source, tmp_path / "made", monkeypatch)
    with pytest.raises(ConfigError, match="holds an unfinished quantization with") as refusal:
        quantize(source, tmp_path / "made", change(source))
    assert named in refusal.value.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (None, "whose settings"),
        (b"", "whose settings"),
        (bytes(60), "whose settings"),
        (b"{", "with other"),
    ],
)
def test_shards_whose_settings_are_lost_are_not_continued(source, tmp_path, monkeypatch, settings, said):
    unfinished(source, tmp_path / "made", monkeypatch)
    file = tmp_path / "made/.wisp-quantize/settings.json"
    file.unlink()
    if settings is not None:
        file.write_bytes(settings)
    with pytest.raises(ConfigError, match=f"holds an unfinished quantization .*{said}"):
        quantize(source, tmp_path / "made", Options("fp8"))


def test_files_are_on_the_disk_before_they_have_their_names(source, tmp_path, monkeypatch):
    """What a failing power leaves: no name of a file whose bytes were not synced."""
    synced, sync, rename = set(), os.fsync, Path.rename

    def fsync(descriptor):
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def checked(path, target):
        assert path in synced, f"{path.name} is renamed before it is synced"
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", checked)
    made = tmp_path / "made"
    quantize(source, made, Options("int4", "awq", shipped_text()[:300]))
    names = {path.name.removesuffix(".partial") for path in synced}
    assert names >= {"settings.json", "config.json", "layer-0000.npz", "model.safetensors"}
    assert made in synced


def test_a_folder_with_anything_else_is_refused(source, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made/notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already, and is no unfinished quantization"):
        quantize(source, tmp_path / "made", Options("fp8"))
    assert digests(tmp_path / "made").keys() == {"notes.txt"}


def test_two_processes_do_not_fill_one_folder(source, tmp_path, monkeypatch):
    write = quantizing.write_shard

    def meanwhile(*arguments):
        with pytest.raises(ConfigError, match="another process is quantizing into"):
            quantize(source, tmp_path / "made", Options("fp8"))
        write(*arguments)

    monkeypatch.setattr(quantizing, "write_shard", meanwhile)
    quantize(source, tmp_path / "made", Options("fp8"))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_named(source, tmp_path, wrong):
    tensors = load_file(source / "model.safetensors")
    tensors[Q_PROJ][5, 6] = wrong
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(WeightsUnreadable, match=f"{Q_PROJ} has a weight that is not finite"):
        quantize(source, tmp_path / "made", Options("int8"))


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [
        (
            errno.ENOSPC,
            DiskFull,
            "no space is left on the disk. Free some and repeat the command: it",
        ),
        (errno.EACCES, ConfigError, "cannot be written or read: Permission denied. Choose another folder"),
    ],
)
def test_a_disk_that_fails_is_one_sentence_and_the_run_goes_on_later(
    source, tmp_path, monkeypatch, number, error, said
):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fails)
        with pytest.raises(error, match=re.escape(said)):
            quantize(source, tmp_path / "made", Options("fp8"))
    quantize(source, tmp_path / "made", Options("fp8"))


def test_what_is_quantized_is_not_quantized_again(source, tmp_path):
    quantize(source, tmp_path / "made", Options("fp8"))
    with pytest.raises(ModelUnsupported, match=r"is quantized already \(compressed-tensors\)\. Quantize the"):
        quantize(tmp_path / "made", tmp_path / "again", Options("int4", "rtn"))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("model.gguf", "is GGUF. Convert it first: wisp-runtime convert"),
        ("tokenizer.json", "tokenizer.json is a file. Name the folder of the checkpoint"),
        ("hf://org/name", "is no folder. Fetch it first: wisp-runtime pull hf://org/name"),
    ],
)
def test_other_sources_are_refused_with_the_command_that_makes_a_folder(tmp_path, named, said):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "tokenizer.json").write_text("{}")
    name = named if "://" in named else str(tmp_path / named)
    result = CliRunner().invoke(main, ["quantize", name, str(tmp_path / "made"), "--to", "fp8"])
    assert result.exit_code == 2
    assert said in result.output


def test_the_command_prints_one_line_or_json(source, tmp_path):
    result = CliRunner().invoke(main, ["quantize", str(source), str(tmp_path / "a"), "--to", "int4"])
    assert result.exit_code == 0
    assert "14 projections in int4" in result.stdout
    result = CliRunner().invoke(main, ["quantize", str(source), str(tmp_path / "b"), "--to", "fp8", "--json"])
    assert json.loads(result.stdout)["quantizedLayers"] == 14
    result = CliRunner().invoke(main, ["quantize", str(source), str(tmp_path / "b"), "--to", "fp8"])
    assert result.exit_code == 2
    assert result.output.count("ConfigError: ") == 1
    (tmp_path / "latin").write_bytes("Grüße".encode("latin-1"))
    for wrong, said in (
        (["--shard-size", "1"], "1 is less than 1 MiB"),
        (
            ["--calibration", str(tmp_path / "latin")],
            "latin is not UTF-8 (byte 2: 0xfc). Name one that is.",
        ),
    ):
        result = CliRunner().invoke(
            main, ["quantize", str(source), str(tmp_path / "c"), "--to", "int4", *wrong]
        )
        assert result.exit_code == 2
        assert said in result.output
