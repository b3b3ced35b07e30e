"""``wisp fit`` of published models by name, without a checkpoint."""

import json
import re

import pytest
from click.testing import CliRunner

from wisp_operator.cli.main import main
from wisp_plan.presets import SHAPES
from wisp_runtime.bench.checkpoint import write_checkpoint


def wisp(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of the shape ``toy``, in a folder of another shape's name."""
    path = tmp_path / "qwen3-8b"
    write_checkpoint("toy", path, lambda *_: None)
    return path


def test_a_published_shape_is_checked_without_a_checkpoint_or_network(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", None)
    monkeypatch.setattr("wisp_operator.core.fit.sources._OPENER", None)
    done = wisp("fit", "Qwen3.6-35B-A3B", "--gpu", "h100")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("qwen3.6-35b-a3b on H100\n")
    assert "No checkpoint was read: these are the sizes of the published qwen3.6-35b-a3b." in done.output
    assert "As if stored in another format: --quantization fp8_block, mxfp4, int4_zero, …" in done.output
    for asked in ("int4", "mxfp4"):
        assert "As if stored" not in wisp("fit", "qwen3-8b", "--gpu", "h100", "--quantization", asked).output


def test_a_shape_needs_as_much_as_its_checkpoint(folder):
    (named,), (read,) = (
        json.loads(wisp("fit", target, "--gpu", "h100", "--json").output) for target in ("toy", folder)
    )
    assert (named["model"], named["uri"], named["basis"], read["basis"]) == (
        *("toy", None, "config"),
        "checkpoint",
    )
    same = set(named) - {"model", "uri", "basis"}
    assert {key: named[key] for key in same} == {key: read[key] for key in same}


@pytest.mark.parametrize("quantization", ["bf16", "fp8", "fp8_block", "int4_g32_zero"])
def test_a_shape_is_checked_in_formats_that_checkpoints_alone_have(quantization):
    done = wisp("fit", "qwen3-8b", "--gpu", "h100", "--quantization", quantization, "--json")
    (answer,) = json.loads(done.output)
    assert answer["quantization"] == quantization


def test_a_checkpoint_in_a_format_that_nothing_is_rounded_to_is_refused(folder):
    done = wisp("fit", folder, "qwen3-14b", "--gpu", "h100", "--quantization", "mxfp4")
    assert (done.exit_code, "qwen3-14b on H100" in done.stdout) == (2, True)
    assert "mxfp4 is a format of published checkpoints, which nothing is rounded to." in done.stderr


def test_help_names_the_shapes_that_bench_knows():
    said = wisp("fit", "--help").output
    assert all(re.search(rf"\s{re.escape(name)}[,.]", said) for name in SHAPES if name != "toy")


def test_a_folder_outranks_a_shape_of_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert wisp("fit", folder.name, "--gpu", "h100").output.startswith(
        "qwen3-8b on H100\n\nweights       272.6 KiB"
    )


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("qwen3.6-35b", "or a published model's shape (did you mean 'qwen3.6-35b-a3b'?): llama-3-8b, "),
        ("Qwen/Qwen3-8B", "A repository of the hub is named by hf://Qwen/Qwen3-8B."),
    ],
)
def test_what_is_no_shape_names_what_may_be_meant(tmp_path, monkeypatch, target, said):
    monkeypatch.chdir(tmp_path)
    done = wisp("fit", target)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
