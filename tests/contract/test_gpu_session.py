"""The script of a GPU session leaves out no test of the GPU, and every name that it lists is a stage."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/bench/gpu_session.sh"


@pytest.fixture(scope="module")
def stages() -> dict[str, list[str]]:
    listed = subprocess.run(["bash", SCRIPT, "--list"], capture_output=True, text=True, check=True).stdout
    lines = (line.partition(": ") for line in listed.splitlines() if not line.startswith("also"))
    return {group: names.split() for group, _, names in lines}


def test_every_test_of_the_gpu_is_a_stage(stages):
    named = {*stages["tests"], *(name.removeprefix("test_") for name in stages["parity"])}
    there = {path.stem.removeprefix("test_") for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert there == named


def test_every_benchmark_of_a_kernel_is_a_stage(stages):
    named = {name.removeprefix("kernel-") for name in stages["kernels"]}
    others = {"gateway", "cpu_engine"}  # need no GPU
    there = {path.stem.removeprefix("bench_") for path in (ROOT / "tests/bench").glob("bench_*.py")}
    assert there - others == named


def test_a_stage_that_does_not_exist_is_told_and_stops_nothing(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path), "COMMIT": "abc", "PYTHON": "/bin/true"}
    done = subprocess.run(
        ["bash", SCRIPT, "nonsense", "norms"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    first, *told = (tmp_path / "summary.txt").read_text().splitlines()
    assert first.startswith("commit abc, ")
    assert [line.split()[:2] for line in told] == [["nonsense", "FAILED(2)"], ["norms", "ok"]]
    assert "=== nonsense" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"summary.txt", "logs.tar.gz", "records.tar.gz"}


def test_what_a_test_left_behind_becomes_a_record(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    monkeypatch.setenv("COMMIT", "abc")
    from stamp_record import stamp

    lines = tmp_path / "parity.jsonl"
    lines.write_text('{"case": "llama", "cosine": 0.99999}\n{"case": "qwen3", "cosine": 0.99998}\n')
    made = json.loads(stamp("parity", lines, "a command").read_text())
    assert (made["name"], made["commit"], made["command"], len(made["rows"])) == (
        "parity",
        "abc",
        "a command",
        2,
    )
    own = tmp_path / "kernel.json"
    own.write_text('{"name": "its own", "rows": [{"us": 1.5}]}')
    assert json.loads(stamp("kernel", own, "a command").read_text())["name"] == "its own"
