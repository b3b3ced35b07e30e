"""The table has every finding of the review, and attacks name findings of it."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (Path(__file__).parent / "findings.md").read_text(encoding="utf-8")


def test_every_finding_of_the_review_has_a_row():
    assert {f"A{n}" for n in range(1, 10)} | {f"B{n}" for n in range(1, 13)} <= set(
        re.findall(r"^\| ([AB]\d+)\b", TABLE, re.MULTILINE)
    )


def test_every_attack_names_findings_of_the_table():
    sources = [file.read_text(encoding="utf-8") for file in (TESTS / "attacks").glob("*/test_*.py")]
    named = {
        finding
        for arguments in re.findall(r"^@attack\((.*)\)$", "\n".join(sources), re.MULTILINE)
        for finding in re.findall(r'"([^"]*)"', arguments)
    }
    assert len(named) > 10
    rows = re.findall(r"^\| (.+?) \|", TABLE, re.MULTILINE)
    unknown = {name for name in named if not any(re.match(rf"{name}\b", row) for row in rows)}
    assert unknown <= {"E", "new"}
