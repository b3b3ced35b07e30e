"""Make what a benchmark or a test left behind a whole record: its name, commit, GPU, driver and command.

    python tests/bench/stamp_record.py NAME FILE COMMAND

FILE is JSON with rows, or JSON lines, a row each, which become FILE with the ending .json. What it says of
these itself stays.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from wisp_runtime.bench import nvml


def stamp(name: str, path: Path, command: str) -> Path:
    """Write the record and return where it is."""
    text = path.read_text(encoding="utf-8")
    is_lines = path.suffix == ".jsonl"
    found = {"rows": [json.loads(line) for line in text.splitlines()]} if is_lines else json.loads(text)
    card = nvml.card()
    where = {"gpu": card.name, "driver": card.driver} if card else {}
    told = {"name": name, "commit": os.environ.get("COMMIT", "unknown"), **where, "command": command}
    target = path.with_suffix(".json")
    target.write_text(json.dumps(told | found, indent=1) + "\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    print(stamp(sys.argv[1], Path(sys.argv[2]), sys.argv[3]), file=sys.stderr)
