"""Events of a model: listed in the order in which they happened."""

from wisp_operator import api
from wisp_operator.cluster.reconcile.events import EventNote, events

MODEL = api.parse(
    {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat", "namespace": "a", "uid": "u1"},
        "spec": {"model": {"uri": "file:///srv"}},
    }
)


def test_events_by_name_are_events_by_time():
    """kubectl sorts by lastTimestamp, which events.k8s.io refuses; it keeps the server's order of names."""
    notes = [EventNote("Normal", reason, "") for reason in ("Waking", "Restarting", "Serving")]
    written = [event for at in (9.5, 1.8e9, 1.8e9 + 0.001, 4e9) for event in events(MODEL, notes, at, "one")]
    assert sorted(written, key=lambda event: event["metadata"]["name"]) == written
    assert sorted(written, key=lambda event: event["eventTime"]) == written
    assert [event["reason"] for event in written[:3]] == ["Waking", "Restarting", "Serving"]
    assert len({event["metadata"]["name"] for event in written + events(MODEL, notes, 9.5, "two")}) == 15
