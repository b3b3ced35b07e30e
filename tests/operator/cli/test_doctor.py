"""``wisp doctor``: each check over a fake machine, and the complete program."""

import json
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from wisp_operator.cli import checks
from wisp_operator.cli.checks import Check
from wisp_operator.cli.commands.doctor import show
from wisp_operator.local import config
from wisp_operator.local.machine import hardware, ports
from wisp_operator.local.machine.hardware import Card

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


def found(check):
    return list(check())


@pytest.mark.parametrize(
    ("cards", "standings"),
    [
        ([], ["note"]),
        ([Card("NVIDIA L4", 22 * GIB, 20 * GIB, "580.65.06")], ["ok"]),
        ([Card("NVIDIA L4", 22 * GIB, 20 * GIB, "535.104")], ["warn"]),  # too old for CUDA 13
        ([Card("A", GIB, GIB, "600.1"), Card("B", GIB, GIB, "[N/A]")], ["ok", "warn"]),
    ],
)
def test_a_gpu_is_good_with_a_driver_that_is_new_enough(monkeypatch, cards, standings):
    monkeypatch.setattr(hardware, "cards", lambda: cards)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert [check.standing for check in found(checks._gpus)] == standings


def test_a_driver_that_lists_no_gpu_is_worth_a_look(monkeypatch):
    monkeypatch.setattr(hardware, "cards", lambda: [])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (check,) = found(checks._gpus)
    assert (check.standing, "nvidia-smi" in check.advice) == ("warn", True)


@pytest.mark.parametrize(
    ("answer", "cards"),
    [
        ("NVIDIA L4, 23034, 22500, 580.65.06\n", [Card("NVIDIA L4", 23034 << 20, 22500 << 20, "580.65.06")]),
        ("NVIDIA L4, [N/A], [N/A], 580\n", []),
        ("", []),
    ],
)
def test_the_drivers_answer_is_read(monkeypatch, tmp_path, answer, cards):
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert hardware.cards() == cards


def test_a_driver_that_fails_or_hangs_is_no_gpu(monkeypatch, tmp_path):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(hardware, "DRIVER_TIMEOUT_S", 0.2)
    assert hardware.cards() == []


def kernel(model, is_built, source="x.cu"):
    return {"arch": "sm_90a", "model": model, "op": "rmsnorm", "source": source, "isBuilt": is_built}


@pytest.mark.parametrize(
    ("rows", "standing", "says"),
    [
        ([kernel("common", True), kernel("qwen3-8b", True)], "ok", "2 of 2 for sm_90a compiled in /k"),
        ([kernel("common", False), kernel("qwen3-8b", False)], "warn", "no model starts"),
        (
            [kernel("common", True), kernel("qwen3-8b", False)],
            "note",
            "persistent decode kernel for qwen3-8b",
        ),
        ([kernel("common", True), {**kernel("common", None, None), "why": "none"}], "ok", "1 of 1"),
    ],
)
def test_kernels_that_are_not_compiled_are_worth_a_look(rows, standing, says):
    check = checks.kernels_of(rows, "/k")
    assert (check.standing, says in check.found) == (standing, True)
    assert check.advice == ("" if standing == "ok" else "wisp-runtime kernels build --arch sm_90a")


@pytest.mark.parametrize(
    ("script", "expect"),
    [
        (f"echo '{json.dumps([kernel('common', True)])}'", ("ok", "1 of 1 for sm_90a compiled in /k")),
        (
            "echo 'wisp-runtime: KernelsMissing: none for 7.5' >&2; exit 1",
            ("warn", "KernelsMissing: none for 7.5"),
        ),
        ("echo nonsense", ("warn", "not known")),
        ("exec sleep 60", ("warn", "not known")),
    ],
)
def test_the_runtime_lists_the_kernels_of_the_first_gpu(monkeypatch, tmp_path, script, expect):
    program = tmp_path / "wisp-runtime"
    program.write_text(f'#!/bin/sh\n[ "$*" = "kernels list --device 0 --json" ] || exit 9\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setattr(checks, "KERNELS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(config, "program", lambda name: str(program))
    monkeypatch.setattr(hardware, "cards", lambda: [Card("NVIDIA H200", 140 * GIB, 139 * GIB, "580.1")])
    monkeypatch.setenv("WISP_KERNELS", "/k")
    (check,) = found(checks._kernels)
    assert (check.standing, check.found) == expect


def test_without_a_gpu_kernels_are_not_checked(monkeypatch):
    monkeypatch.setattr(hardware, "cards", lambda: [])
    assert found(checks._kernels) == []


@pytest.mark.parametrize(("models", "says"), [({"a": {}}, "with 1 model answers"), ({}, "with 0 models")])
def test_a_gateway_on_the_port_is_named_with_its_models(monkeypatch, models, says):
    def taken(host, port):
        raise ports.PortTaken("8080 is in use. By a gateway.")

    monkeypatch.setattr(ports, "require_free", taken)
    monkeypatch.setattr(checks.GatewayClient, "state", lambda self: {"models": models})
    (check,) = found(checks._port)
    assert says in check.found


@pytest.mark.parametrize(("free", "standing"), [(100 * GIB, "ok"), (GIB, "warn")])
def test_a_cache_that_is_nearly_full_is_worth_a_look(monkeypatch, tmp_path, free, standing):
    monkeypatch.setenv("WISP_CACHE_DIR", str(tmp_path / "not" / "there" / "yet"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    assert found(checks._disk)[0].standing == standing


def test_a_missing_program_is_in_the_way(monkeypatch):
    monkeypatch.setattr(config, "program", lambda name: None)
    assert {(check.standing, "pip install" in check.advice) for check in found(checks._programs)} == {
        ("fail", True)
    }


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr(checks, "_is_installed", lambda name: name not in ("aiohttp", "tokenizers"))
    monkeypatch.setattr(hardware, "cards", lambda: [])
    operator, runtime, cuda = found(checks._extras)
    assert (operator.standing, operator.found) == ("fail", "lacks aiohttp")
    assert (runtime.standing, runtime.advice) == ("warn", "pip install -e '.[runtime]' in a clone")
    assert cuda.standing == "ok"


def test_a_taken_port_is_named_with_its_process(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(checks, "PORT", port)
        monkeypatch.setattr(checks, "DEFAULT_URL", "http://127.0.0.1:9")
        (check,) = found(checks._port)
    assert check.standing == "warn"
    assert "(pid " in check.found


@pytest.mark.parametrize(
    ("variable", "file", "standing"),
    [("hf_x", None, "ok"), (None, "hf_x\n", "ok"), (None, None, "note"), (None, "\n", "note")],
)
def test_a_token_counts_wherever_it_is_kept(monkeypatch, tmp_path, variable, file, standing):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    if variable:
        monkeypatch.setenv("HF_TOKEN", variable)
    if file:
        (tmp_path / "token").write_text(file)
    (check,) = found(checks._token)
    assert check.standing == standing
    assert "hf_x" not in check.found  # a report that is pasted somewhere must not carry it


@pytest.mark.parametrize(
    ("answer", "standings"),
    [
        ('{"clientVersion": {}, "serverVersion": {"gitVersion": "v1.31.0"}}', ["ok", "ok", "ok", "ok"]),
        ('{"clientVersion": {}}', ["ok", "ok", "note"]),
        ("", ["ok", "ok", "note"]),
    ],
)
def test_a_cluster_is_there_or_it_is_not(monkeypatch, answer, standings):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(checks, "_kubectl", lambda *arguments: answer)
    assert [check.standing for check in found(checks._cluster)] == standings


def test_advice_stands_below_what_it_is_for(capsys):
    show([Check("port 8080", "warn", "in use", "wisp up --port 8081"), Check("python", "ok", "3.11.7")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "! port 8080  in use"
    assert lines[1].strip() == "→ wisp up --port 8081"
    assert lines[2] == "✓ python     3.11.7"


def test_the_program_reports_everything_as_json_in_bounded_time():
    wisp = str(Path(sys.executable).with_name("wisp"))
    done = subprocess.run([wisp, "doctor", "--json"], capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    names = [check["name"] for check in report]
    assert names[:3] == ["wisp", "python", "system"]
    assert {"gpu", "cpu and memory", "model cache", "Hugging Face token", "kubectl"} <= set(names)
    assert done.returncode == (1 if any(check["standing"] == "fail" for check in report) else 0)
