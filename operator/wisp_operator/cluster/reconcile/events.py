"""Events of a model, as ``kubectl describe`` shows them: one a transition.

Pure but for a random part of names: the conditions before and after in, Event manifests out.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wisp_operator.api import API_VERSION, KIND, InferenceModel
from wisp_operator.core.conditions import Condition
from wisp_operator.core.times import micro_timestamp

CONTROLLER = "wisp.dev/operator"
MAX_NOTE_BYTES = 1024
HEALTHY_FALSE_REASONS = ("Suspended", "ReplicasZero", "Waking", "ScaledToZero", "Settled", "AsExpected")


@dataclass(frozen=True, slots=True)
class EventNote:
    """Content of one event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def transitions(before: Sequence[Condition], after: Sequence[Condition]) -> list[EventNote]:
    """List the changes between two reconciles of a model; each reason once.

    A condition with the same status and reason but another message is no transition.
    """
    old = {condition.type: (condition.status, condition.reason) for condition in before}
    changed = [new for new in after if old.get(new.type) != (new.status, new.reason)]
    was_refused = old.get("Named", ("",))[0] == "False"
    notes: dict[str, EventNote] = {}
    for condition in changed:
        if _is_reported(condition) or (condition.type == "Named" and was_refused):
            kind: Literal["Normal", "Warning"] = "Warning" if _is_bad(condition) else "Normal"
            notes.setdefault(condition.reason, EventNote(kind, condition.reason, condition.message))
    return list(notes.values())


def events(
    model: InferenceModel, notes: Sequence[EventNote], now: float, instance: str
) -> list[dict[str, Any]]:
    """Write notes as Events about ``model`` at ``now`` (Unix seconds), reported by ``instance``.

    ``kubectl describe`` sorts Events by a time that this API does not let us set, and so keeps the order in
    which the API server lists them, by name: a name begins with the time, a microsecond later for each note.
    """
    begin_us = int(now * 1e6)
    return [_event(model, note, begin_us + number, instance) for number, note in enumerate(notes)]


def _event(model: InferenceModel, note: EventNote, at_us: int, instance: str) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{model.name}.{at_us:014x}{secrets.token_hex(4)}",
            "namespace": model.namespace,
        },
        "type": note.type,
        "reason": note.reason,
        "note": _truncated(note.message),
        "action": "Reconcile",
        "eventTime": micro_timestamp(at_us / 1e6),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": model.name,
            "namespace": model.namespace,
            "uid": model.uid,
        },
    }


def _is_reported(condition: Condition) -> bool:
    match condition.type:
        case "Ready":
            return True
        case "Accepted" | "Scheduled" | "ArtifactsReady" | "Named":
            return _is_bad(condition)
        case "Fits":
            return condition.status != "Unknown"
        case "Degraded":
            return condition.status == "True"
        case _:
            return False


def _is_bad(condition: Condition) -> bool:
    if condition.type == "Degraded":
        return condition.status == "True"
    return condition.status == "False" and condition.reason not in (*HEALTHY_FALSE_REASONS, "Fetching")


def _truncated(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MAX_NOTE_BYTES:
        return text
    return encoded[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
