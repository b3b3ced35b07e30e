"""Metrics of recurrent states: there for a model that has them, without samples for others."""

import re

from wisp_runtime.engine.transport.messages import Load, StateLoad
from wisp_runtime.metrics import Registry
from wisp_runtime.server.state_metrics import add_state_metrics

STATES = StateLoad(3, 8, 5, 9, hits_total=40, misses_total=6, evictions_total=2)
EXPECTED = {
    "wisp_state_slots_used": ("gauge", "3"),
    "wisp_state_slots": ("gauge", "8"),
    "wisp_state_snapshots_used": ("gauge", "5"),
    "wisp_state_snapshots": ("gauge", "9"),
    "wisp_state_snapshot_hits_total": ("counter", "40"),
    "wisp_state_snapshot_misses_total": ("counter", "6"),
    "wisp_state_snapshot_evictions_total": ("counter", "2"),
}


def rendered(load):
    registry = Registry({"model_name": "m"})
    add_state_metrics(registry, lambda: load)
    return registry.render()


def test_slots_and_snapshots_are_counted():
    text = rendered(Load(states=STATES))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    values = dict(re.findall(r'^(\w+){model_name="m"} (\S+)$', text, re.MULTILINE))
    assert {name: (kinds[name], values[name]) for name in kinds} == EXPECTED


def test_a_model_without_states_has_no_samples():
    assert not re.search("^wisp", rendered(Load()), re.MULTILINE)
