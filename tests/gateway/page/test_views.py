"""Words and names in the views: those of the runtime, the operator and the gateway's documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from wisp_gateway.page import files

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "tests/gateway/samples"


def names_in(file: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, (files.FOLDER / file).read_text(), re.M))


def test_each_remedy_belongs_to_a_reason_that_the_operator_gives():
    documented = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/operations.md").read_text(), re.M))
    remedies = names_in("models/reasons.js", r"^  ([A-Z]\w+): ")
    assert len(remedies) > 10
    assert remedies - documented == set()


def test_every_phase_of_a_wake_has_a_name_and_a_colour():
    wakes = json.loads((SAMPLES / "history.json").read_text())["wakes"]
    reported = {phase["name"] for wake in wakes for phase in wake["phases"]}
    named = names_in("models/phases.js", r'name: "(\w+)"')
    assert reported - named == set()
    style = (files.FOLDER / "style.css").read_text()
    assert {name for name in named if f".phase-{name}" not in style} == set()


def test_every_row_of_a_ledger_has_a_name_and_a_colour():
    models = json.loads((SAMPLES / "state.json").read_text())["models"]
    reported = {row["name"] for model in models for row in model["ledger"] or ()}
    named = names_in("views/ledger.js", r"^  (\w+): \"")
    assert reported
    assert reported - named == set()
    style = (files.FOLDER / "style.css").read_text()
    assert {name for name in named if f".memory-{name}" not in style} == set()


@pytest.mark.parametrize(
    ("file", "kind", "pattern"),
    [
        ("views/requests.js", "requests", r"\brow\.(\w+)"),
        ("views/wakes.js", "wakes", r"\bwake\.(\w+)"),
    ],
)
def test_a_view_reads_fields_that_its_document_has(file, kind, pattern):
    rows = json.loads((SAMPLES / "history.json").read_text())[kind]
    fields = {name for row in rows for name in row} | {"receivedMs"}  # the page's own stamp
    read = names_in(file, pattern)
    assert len(read) > 3
    assert read - fields == set()


def test_the_live_view_reads_measures_that_samples_have():
    samples = json.loads((SAMPLES / "history.json").read_text())["samples"]
    fields = {name for sample in samples for model in sample["models"].values() for name in model}
    measures = names_in("views/live.js", r'measure: "(\w+)"')
    measures |= names_in("views/series.js", r'sum\("(\w+)"\)')
    assert measures == fields


def test_a_card_reads_fields_that_a_model_has():
    models = json.loads((SAMPLES / "state.json").read_text())["models"]
    fields = {name for model in models for name in model} | {"receivedMs"}
    files_of_card = ("views/model_card.js", "views/model_actions.js", "views/wake_bar.js")
    read = {name for file in files_of_card for name in names_in(file, r"\bmodel\.(\w+)")}
    assert len(read) > 10
    assert read - fields == set()
