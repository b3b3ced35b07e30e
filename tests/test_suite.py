"""Rules of the suite itself: skips that CI may have, the share of each process, tests that tables name."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from expected_skips import unexpected
from xdist_shares import share_of

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("reason", "is_expected"),
    [
        ("could not import 'cupy': No module named 'cupy'", True),
        ("needs KUBECONFIG and -m cluster (make test-cluster)", True),
        ("needs -m cluster (make test-cluster)", True),
        ("needs helm: tests/cluster/node/build.sh makes one", False),  # `make test` builds it
        ("the emulated GPU is compiled by g++, for x86-64", False),  # .ci/run installs g++
        ("", False),
    ],
)
def test_a_skip_in_ci_has_a_reason_that_is_listed(reason, is_expected):
    report = SimpleNamespace(nodeid="test_a.py::test_b", longrepr=("test_a.py", 3, f"Skipped: {reason}"))
    assert unexpected([report]) == ([] if is_expected else [f"test_a.py::test_b: {reason}"])


@pytest.mark.parametrize(("ci", "code"), [("", pytest.ExitCode.OK), ("1", pytest.ExitCode.TESTS_FAILED)])
def test_a_hidden_test_fails_a_run_in_ci_alone(ci, code, tmp_path):
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_it(): pytest.skip('not today')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest"]
    paths = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [*command, "--import-mode=importlib", "--rootdir", str(tmp_path), str(tmp_path)],
        env=os.environ | {"CI": ci, "PYTHONPATH": paths, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "not today" in done.stdout) == (code, bool(ci)), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("nodeid", "share"),
    [
        ("tests/plan/test_units.py::test_a", "tests/plan/test_units.py"),
        ("tests/attacks/gateway/test_keys.py::test_a", "tests/attacks/gateway"),
        (
            "tests/emulator/test_emulated_step.py::test_a[b-c]",
            "tests/emulator/test_emulated_step.py::test_a[b",
        ),
    ],
)
def test_tests_that_share_fixtures_run_in_one_process(nodeid, share):
    assert share_of(nodeid) == share


@pytest.mark.parametrize("table", ["findings.md", "attacks/findings.md"])
def test_every_test_that_a_table_of_findings_names_exists(table):
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (TESTS / table).read_text(encoding="utf-8"))
    assert len(named) > 40
    sources = {path: (TESTS / path).read_text() if (TESTS / path).is_file() else "" for path, _ in named}
    names = re.compile(r"\bdef (test_\w+)\(")
    missing = [f"{p}::{n}" for p, n in named if not sources[p] or (n and n not in names.findall(sources[p]))]
    assert missing == []
