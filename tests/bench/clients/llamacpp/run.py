"""Run llama.cpp's server tests, unmodified, against Wisp, and write a row for each.

    python -m venv VENV; VENV/bin/pip install -r CHECKOUT/tools/server/tests/requirements.txt pytest-timeout
    python tests/bench/clients/llamacpp/run.py --checkout CHECKOUT --python VENV/bin/python > rows.jsonl

CHECKOUT is a checkout of llama.cpp, of which nothing is copied here. A row is `{"test", "result", "error"}`;
`classes.py` makes a record of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from runtimes import Runtimes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from loopback import isolate

HERE = Path(__file__).resolve().parent
TEST_S = 300
TRIES = 5
NOT_STARTED = ("Server did not start", "failed on setup")

Row = dict[str, str | None]


def main() -> None:
    """Print a row for each test."""
    isolate()
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("tests", nargs="*", default=["unit"])
    asked = parser.parse_args()
    folder = asked.checkout.resolve() / "tools/server/tests"
    runtimes = Runtimes(Path(sys.executable).parent, folder)
    try:
        for row in _rows(folder, asked.python, asked.tests, runtimes.url):
            print(json.dumps(row), flush=True)
    finally:
        runtimes.close()


def _rows(folder: Path, python: str, tests: list[str], runtimes: str) -> list[Row]:
    """Run the tests; those whose server was not ready in time again, now that it runs."""
    shim = {"LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server.py"), "WISP_RUNTIMES": runtimes}
    environment = {**os.environ, **shim, "PYTHONDONTWRITEBYTECODE": "1"}
    presets = [python, "-c", "import utils; utils.ServerPreset.load_all()"]
    for _ in range(TRIES):
        if not subprocess.run(
            presets, cwd=folder, env=environment, stdout=sys.stderr, check=False
        ).returncode:
            break
    rows = _run(folder, python, tests, environment)
    late = [name for name, row in rows.items() if any(sign in (row["error"] or "") for sign in NOT_STARTED)]
    return list({**rows, **(_run(folder, python, late, environment) if late else {})}.values())


def _run(folder: Path, python: str, tests: list[str], environment: dict[str, str]) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "report.xml"
        options = ["-m", "not slow", f"--timeout={TEST_S}", f"--junitxml={report}", "-p", "no:cacheprovider"]
        command = [python, "-m", "pytest", "-q", *options, *tests]
        subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=False)
        return dict(_row(case) for case in ElementTree.parse(report).iter("testcase"))


def _row(case: ElementTree.Element) -> tuple[str, Row]:
    """Return a test's argument for pytest, and its row."""
    module = case.get("classname", "").rpartition(".")[2]
    name = f"unit/{module}.py::{case.get('name')}"
    if case.find("skipped") is not None:
        return name, {"test": name, "result": "skipped", "error": None}
    failed = [element for kind in ("failure", "error") for element in case.iter(kind)]
    if not failed:
        return name, {"test": name, "result": "passed", "error": None}
    error = next(iter(failed[0].get("message", "").splitlines()), "")
    return name, {"test": name, "result": "failed", "error": error[:300]}


if __name__ == "__main__":
    main()
