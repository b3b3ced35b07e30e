"""Compile kernels: existing cubins are skipped, failures leave none, and missing tools are named."""

import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from wisp_plan.families.config import parse_config
from wisp_plan.presets import shape_config
from wisp_plan.weights.held import AUTO, BF16, ROUNDED
from wisp_runtime.cli import kernels as command
from wisp_runtime.config import DEFAULT_CACHE_DIR, Quantization, check_environment, kernels_dir
from wisp_runtime.errors import CompilationFailed, CompilerMissing
from wisp_runtime.ops.cuda.device import build
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import Absent
from wisp_runtime.ops.cuda.persistent.model import kernel_model

COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$1" >>{log}
case $1 in *{refuses}*) echo "error: {refuses} is wrong" >&2; exit 1;; esac
echo cubin of "$1" >"$out"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make an nvcc that writes a line a call to ``tmp_path/calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (folder / "g++").touch(0o755)

    def make(refuses="nothing"):
        path = folder / "nvcc"
        path.write_text(COMPILER.format(log=tmp_path / "calls", refuses=refuses))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def run(*arguments, **environment):
    return CliRunner().invoke(command.command, arguments, env=environment)


def calls(tmp_path):
    log = tmp_path / "calls"
    return log.read_text().splitlines() if log.exists() else []


def test_build_compiles_each_source_once_and_prints_the_folder(compiler, tmp_path):
    compiler()
    first = run("build", "--arch", "sm_90a", "--out", str(tmp_path / "out"))
    assert (first.exit_code, first.stdout.strip()) == (0, str(tmp_path / "out"))
    assert re.search(r"^sm_90a portable/elementwise/rmsnorm: \d+\.\d s$", first.stderr, re.M)
    assert (
        len(calls(tmp_path)) == len(list((tmp_path / "out").iterdir())) == len(Catalogue().sources("hopper"))
    )
    again = run("build", "--arch", "sm_90a", "--out", str(tmp_path / "out"))
    assert "portable/elementwise/rmsnorm: there" in again.stderr
    assert len(calls(tmp_path)) == len(Catalogue().sources("hopper"))


def test_a_refused_source_ends_the_build_and_leaves_nothing_half_made(compiler, tmp_path):
    compiler(refuses="rmsnorm.cu")
    result = run("build", "--arch", "sm_80", "--out", str(tmp_path / "out"), "--jobs", "2")
    assert result.exit_code == 1
    assert re.search(r"CompilationFailed: nvcc refused \S+rmsnorm\.cu for sm_80:\n.*is wrong", result.stderr)
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.endswith(".cubin")] == []


def test_a_compiler_that_cannot_run_is_named(tmp_path):
    job = build.plan(Catalogue(), ["sm_80"], tmp_path)[0]
    with pytest.raises(CompilationFailed, match="/no/nvcc did not compile"):
        build.compile_one(job, Path("/no/nvcc"), tmp_path)


def test_an_unknown_architecture_is_refused_with_those_there_are(tmp_path):
    result = run("build", "--arch", "sm_75", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "nothing is compiled for sm_75; there are sm_89, sm_80, sm_86, sm_90a" in result.stderr


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("wisp_runtime.ops.cuda.device.build._in_wheels", list)
    result = run("build", "--out", str(tmp_path), PATH=str(tmp_path), CUDA_HOME="")
    assert result.exit_code == 1
    assert "CompilerMissing: there is no nvcc" in result.stderr
    assert "pip install -e '.[kernels]' in a clone" in result.stderr


@pytest.mark.parametrize("place", ["given", "PATH", "CUDA_HOME", "wheels"])
def test_the_compiler_is_found_where_it_may_be(place, monkeypatch, tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.touch(0o755)
    (tmp_path / "g++").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{nvcc.parent if place == 'PATH' else ''}")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path) if place == "CUDA_HOME" else "")
    monkeypatch.setattr(build, "_in_wheels", lambda: [nvcc] if place == "wheels" else [])
    assert build.find_nvcc(nvcc if place == "given" else None) == nvcc


def test_a_given_compiler_that_is_not_there_is_not_replaced_by_another(compiler):
    compiler()
    with pytest.raises(CompilerMissing, match="/no/nvcc is not there"):
        build.find_nvcc(Path("/no/nvcc"))


def test_nvcc_without_a_c_compiler_says_so(tmp_path, monkeypatch):
    (tmp_path / "nvcc").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing, match=r"Install g\+\+"):
        build.find_nvcc()


def test_list_prints_every_op_of_every_gpu(tmp_path, monkeypatch):
    resolve, lacking = Catalogue.resolve, Absent("linear", "needs wgmma. Use another.")
    monkeypatch.setattr(Catalogue, "resolve", lambda *arguments: resolve(*arguments) | {"linear": lacking})
    text = run("list", WISP_KERNELS=str(tmp_path)).stdout
    assert re.search(r"^sm_90a +hopper/common/bf16: 0 of \d\d compiled$", text, re.M)
    assert re.search(
        r"^sm_89 +ada/common/bf16: 0 of \d\d compiled; no model has run on such a card$", text, re.M
    )
    assert re.search(r"^  rmsnorm +not compiled +portable/elementwise/rmsnorm\.cu", text, re.M)
    assert re.search(r"^  linear +absent: .*wgmma", text, re.M)


OTHER_LLAMA = shape_config("llama-3-8b") | {"hidden_size": 3840}
OTHER_GPT_OSS = shape_config("gpt-oss-20b") | {"num_local_experts": 64}
FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("config", "options", "held"),
    [
        (OTHER_LLAMA, (), "bf16"),
        (OTHER_LLAMA, ("--quantization", "int4"), "int4"),
        (OTHER_LLAMA, ("--quantization", "fp8", "--kv-cache-dtype", "fp8"), "fp8/fp8"),
        (OTHER_LLAMA | {"quantization_config": FP8_BLOCKS}, (), "fp8_block"),  # as stored
        (OTHER_GPT_OSS, (), "bf16:mxfp4_fields"),
    ],
)
def test_build_for_a_model_compiles_its_decode_step_too(config, options, held, compiler, tmp_path):
    compiler()
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = ("--arch", "sm_90a", "--out", str(tmp_path / "out"), "--for", str(tmp_path))
    done = run("build", *made, *options)
    assert done.exit_code == 0, done.stderr
    assert "its persistent decode kernel for sm_90a is persistent_decode-sm_90a-" in done.stderr
    catalogue, model = Catalogue(), kernel_model(parse_config(config))
    (source,) = catalogue.templates("hopper", held, model)
    assert (tmp_path / "out" / catalogue.cubin_name(source, "sm_90a")).is_file()
    assert len(calls(tmp_path)) == len(catalogue.sources("hopper")) + 1


def test_build_for_a_model_that_cannot_have_a_decode_step_says_why(compiler, tmp_path):
    compiler()
    (tmp_path / "config.json").write_text(json.dumps(shape_config("toy")))
    done = run("build", "--arch", "sm_90a", "--out", str(tmp_path / "out"), "--for", str(tmp_path))
    assert done.exit_code == 1
    assert "heads of 16 channels, not 64, 128 or 256. It is served all the same" in done.stderr


def test_list_as_json_says_what_is_compiled(compiler, tmp_path):
    compiler()
    run("build", "--arch", "sm_90a", "--out", str(tmp_path / "out"))
    result = run("list", "--arch", "sm_90a", "--json", WISP_KERNELS=str(tmp_path / "out"))
    rows = json.loads(result.stdout)
    assert {row["arch"] for row in rows} == {"sm_90a"}
    assert all(row["isBuilt"] for row in rows)


def test_list_of_a_device_without_its_libraries_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "wisp_runtime.ops.cuda.device.gpu", raising=False)
    result = run("list", "--device", "0")
    assert result.exit_code == 1
    assert "GpuUnavailable: cupy is not installed. Run pip install --require-hashes -r" in result.stderr


def test_the_folder_is_a_variable_that_serving_knows(monkeypatch):
    check_environment({"WISP_KERNELS": "/opt/wisp/kernels"})
    monkeypatch.setenv("WISP_KERNELS", "/opt/wisp/kernels")
    assert kernels_dir() == Path("/opt/wisp/kernels")
    monkeypatch.delenv("WISP_KERNELS")
    assert kernels_dir() == DEFAULT_CACHE_DIR / "kernels"


def test_the_formats_of_build_are_those_that_weights_can_be_held_in():
    assert (AUTO, BF16, *ROUNDED) == get_args(Quantization)
