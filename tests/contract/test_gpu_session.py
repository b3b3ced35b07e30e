"""The script of a GPU session leaves out no test of the GPU, and every name that it lists is a stage."""

from __future__ import annotations

import json
import subprocess
import sys
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
    there = {path.stem.removeprefix("test_") for path in (ROOT / "tests/gpu").rglob("test_*.py")}
    assert there == named


def test_every_benchmark_of_a_kernel_is_a_stage(stages):
    named = {name.removeprefix("kernel-") for name in stages["kernels"]}
    others = {"gateway", "cpu_engine", "penalty_overlap", "fairness", "gpu_neighbour"}  # of no kernel
    there = {path.stem.removeprefix("bench_") for path in (ROOT / "tests/bench").glob("bench_*.py")}
    assert there - others == named


def test_an_unknown_stage_is_reported_and_stops_nothing(tmp_path):
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


SANITIZER = """#!/bin/sh
echo "$@" >>"$TOLD"
case "$*" in
  *memcheck*norms*) printf '... [100%%]\\n3 passed, 9 deselected in 1.40s\\n'
    printf '========= ERROR SUMMARY: 0 errors\\n========= ERROR SUMMARY: 2 errors\\n'
    echo '========= ERROR SUMMARY: 76 errors were not printed. Use --print-limit option'; exit 86 ;;
  *memcheck*) echo '1 failed, 2 passed in 1.40s'; echo '========= ERROR SUMMARY: 0 errors'; exit 1 ;;
  *racecheck*norms*) echo '========= COMPUTE-SANITIZER'; echo '3 passed, 9 deselected in 61.40s (0:01:01)'
    echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)' ;;
  *) printf '========= COMPUTE-SANITIZER\\n...'; exit 124 ;;  # as timeout ends it
esac
"""


def test_what_a_sanitizer_found_is_a_row_for_each_tool_and_test(tmp_path):
    fake, told = tmp_path / "bin/compute-sanitizer", tmp_path / "told"
    fake.parent.mkdir()
    fake.write_text(SANITIZER)
    fake.chmod(0o755)
    environment = {
        **{"PATH": f"{fake.parent}:/usr/bin:/bin", "OUT": str(tmp_path / "out"), "COMMIT": "abc"},
        **{"PYTHON": sys.executable, "TOLD": str(told)},
    }
    stages = ("memcheck-norms", "memcheck-pack", "racecheck-norms", "racecheck-pack")
    done = subprocess.run(["bash", SCRIPT, *stages], env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert [" --report-api-errors no " in line for line in told.read_text().splitlines()] == [1, 1, 0, 0]
    subprocess.run(["tar", "-xzf", tmp_path / "out/records.tar.gz", "-C", tmp_path], check=True)
    record = json.loads((tmp_path / "records/sanitizer.json").read_text())
    assert (record["name"], record["commit"]) == ("sanitizer", "abc")
    keys = ("tool", "test", "errors", "hazards", "cases", "ended")
    assert [tuple(row[key] for key in keys) for row in record["rows"]] == [
        ("memcheck", "norms", 2, None, 3, "found something"),
        ("memcheck", "pack", 0, None, 2, "tests failed"),
        ("racecheck", "norms", 0, 0, 3, "ok"),
        ("racecheck", "pack", None, None, 0, "ran out of time"),
    ]


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
