"""Random schedules with recurrent states: no other token, no leaked slot. 100,000 of them are a record."""

import json
import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "support")]
from random_schedules import run_schedules

from wisp_runtime.engine.cache import snapshots

RECORD = Path(__file__).parents[3] / "bench/records/state-schedules.json"
FAULTS = ("wrong", "leaked_slots", "leaked_snapshots", "leaked_blocks")


@pytest.mark.parametrize("first_strides", [4, snapshots.MIN_FIRST_STRIDES])
def test_no_schedule_changes_a_token_or_leaks_a_slot(monkeypatch, first_strides):
    """With four, first visitors leave snapshots in most schedules, whose prompts are short."""
    monkeypatch.setattr(snapshots, "MIN_FIRST_STRIDES", first_strides)
    tally = vars(run_schedules(first=1_000_000, count=200))
    assert {name: tally[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    rare = ("aborted", "preemptions", "cached_tokens", "hits", "misses", "evictions")
    assert all(tally[name] > 3 for name in rare), tally


def test_the_record_is_of_100_000_schedules_without_a_fault():
    (row,) = json.loads(RECORD.read_text())["rows"]
    assert row["schedules"] == 100_000
    assert {name: row[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
