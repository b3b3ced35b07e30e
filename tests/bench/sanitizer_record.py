"""Add what compute-sanitizer found in one test to a record: a row for each tool and test.

    python tests/bench/sanitizer_record.py TOOL-TEST LOG STATUS SECONDS RECORD

STATUS is what the run ended with. Where the log has no summary, errors and hazards are null: nobody knows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stamp_record import stamp

COMMAND = "bash tests/bench/gpu_session.sh sanitizer"
ENDINGS = {0: "ok", 86: "found something", 124: "ran out of time", 137: "ran out of time"}
ERRORS = re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?$", re.MULTILINE)
RACES = re.compile(r"^=+ RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?", re.MULTILINE)
PASSED = re.compile(r"^(?:.*\D)?(\d+) passed\b.* in [\d.]+s", re.MULTILINE)


def row_of(stage: str, log: str, status: int, seconds: int) -> dict[str, Any]:
    """Return what the log of one run says; summaries of several processes are added up."""
    tool, _, test = stage.partition("-")
    races = RACES.findall(log)
    return {
        "tool": tool,
        "test": test,
        "errors": _sum(errors for _, errors in races) if races else _sum(ERRORS.findall(log)),
        "hazards": _sum(hazards for hazards, _ in races),
        "cases": _sum(PASSED.findall(log)) or 0,
        "seconds": seconds,
        "ended": ENDINGS.get(status, "tests failed"),
    }


def _sum(found: Iterable[str]) -> int | None:
    numbers = [int(number) for number in found]
    return sum(numbers) if numbers else None


def add(row: dict[str, Any], record: Path) -> None:
    """Write ``row`` behind those that ``record`` has."""
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"] if record.is_file() else []
    record.write_text(json.dumps({"rows": [*rows, row]}), encoding="utf-8")
    stamp("sanitizer", record, COMMAND)


if __name__ == "__main__":
    stage, log, status, seconds, record = sys.argv[1:]
    made = row_of(stage, Path(log).read_text(encoding="utf-8", errors="replace"), int(status), int(seconds))
    add(made, Path(record))
    print(", ".join(f"{key} {value}" for key, value in made.items()))
