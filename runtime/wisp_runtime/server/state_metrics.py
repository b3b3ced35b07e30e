"""Metrics of recurrent states: slots of sequences, and snapshots in the prefix cache.

A model without recurrent layers has the names, and no samples.
"""

from __future__ import annotations

from collections.abc import Callable

from wisp_runtime.engine.transport.messages import Load
from wisp_runtime.metrics import Reading, Registry
from wisp_runtime.server.readings import Samples

_METRICS = (
    ("wisp_state_slots_used", "Slots of recurrent state that sequences have.", "slots_used"),
    ("wisp_state_slots", "Slots of recurrent state.", "slots_total"),
    ("wisp_state_snapshots_used", "Snapshots of recurrent state in the prefix cache.", "snapshots_used"),
    ("wisp_state_snapshots", "Slots of snapshots.", "snapshots_total"),
    ("wisp_state_snapshot_hits_total", "Sequences that began from a snapshot.", "hits_total"),
    (
        "wisp_state_snapshot_misses_total",
        "Sequences that began anew, though there were keys and values of their first tokens.",
        "misses_total",
    ),
    (
        "wisp_state_snapshot_evictions_total",
        "Snapshots that gave way to others or to blocks.",
        "evictions_total",
    ),
)


def add_state_metrics(registry: Registry, load: Callable[[], Load]) -> None:
    """Register the metrics of recurrent states.

    Args:
        load: reader of the engine's load.
    """
    for name, text, field in _METRICS:
        registry.add(Reading(name, text, _reader(load, field), _kind(name)))


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _reader(load: Callable[[], Load], field: str) -> Callable[[], Samples]:
    def read() -> Samples:
        states = load().states
        return [] if states is None else [({}, float(getattr(states, field)))]

    return read
