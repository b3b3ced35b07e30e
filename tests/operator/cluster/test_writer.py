"""Writes to a cluster: drift, own writes, statuses, events, the work queue."""

import asyncio
import copy

import pytest

from wisp_operator.api import parse
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.writer import ClusterWriter, NotLeading, path_of
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.cluster.observation.watches import model_key
from wisp_operator.cluster.reconcile import drift
from wisp_operator.cluster.reconcile.events import events, transitions
from wisp_operator.cluster.reconcile.status_writes import VOLATILE_EVERY_S, is_due, merged
from wisp_operator.cluster.workqueue import WorkQueue
from wisp_operator.core.conditions import condition


def service(**spec):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": "a"},
        "spec": {"type": "ClusterIP", "ports": [{"port": 80, "name": "http"}], "egress": [], **spec},
    }


def stored(desired, **changes):
    """The object as the server keeps it: with defaults filled in, empty lists dropped."""
    live = copy.deepcopy(drift.with_digest(desired))
    live["spec"] |= {"clusterIP": "10.0.0.1", **changes}
    live["spec"]["ports"] = live["spec"]["ports"] and [live["spec"]["ports"][0] | {"protocol": "TCP"}]
    live["spec"].pop("egress")
    live["metadata"]["resourceVersion"] = "7"
    return live


@pytest.mark.parametrize(
    ("desired", "live", "differs"),
    [
        (service(), None, True),
        (service(), stored(service()), False),  # what the server filled in is not ours to undo
        (service(), stored(service(), type="NodePort"), True),  # somebody changed what we said
        (service(), stored(service(), ports=[]), True),
        (service(), stored(service(externalName="x")), True),  # we no longer set it: only the digest differs
        (service(), service(), True),  # never ours
    ],
)
def test_an_apply_is_due_when_the_manifest_or_the_object_changed(desired, live, differs):
    assert drift.differs(drift.with_digest(desired), live) is differs


def test_the_digest_is_of_the_manifest_and_leaves_it_unchanged():
    desired = service()
    before = copy.deepcopy(desired)
    digest = drift.with_digest(desired)["metadata"]["annotations"][drift.DIGEST]
    assert desired == before
    assert drift.with_digest(service(type="NodePort"))["metadata"]["annotations"][drift.DIGEST] != digest


def test_our_own_write_is_seen_before_its_event_and_forgotten_with_it():
    index = {}
    caches = Caches()
    caches.attach({"Service": index})
    ours = stored(service())
    caches.record_write(ours)
    assert caches.child(service()) is ours
    theirs = copy.deepcopy(ours)
    theirs["metadata"]["resourceVersion"] = "8"
    index["a/chat"] = [theirs]
    assert caches.child(service()) is theirs
    del index["a/chat"]  # deleted: our old write must not hide it
    assert caches.child(service()) is None


STATUS = {
    "state": "Ready",
    "coldStart": {"lastSeconds": 2.4, "phases": {"weights": 1.0}},
    "queue": {"running": 0},
}


@pytest.mark.parametrize(
    ("change", "age_s", "due"),
    [
        ({}, 1e6, False),
        ({"state": "Asleep"}, 0.0, True),
        ({"queue": {"running": 3}}, 0.0, False),  # numbers of the moment wait
        ({"queue": {"running": 3}}, VOLATILE_EVERY_S, True),
    ],
)
def test_a_status_is_written_when_it_says_something_new(change, age_s, due):
    assert is_due(STATUS | change, STATUS, age_s) is due


def test_a_model_at_zero_keeps_what_its_last_start_took():
    asleep = {"state": "Asleep", "coldStart": {"lastSeconds": 2.4}}
    assert merged(asleep, STATUS)["coldStart"] == STATUS["coldStart"]
    awake = {"state": "Ready", "coldStart": {"lastSeconds": 3.0, "phases": {"import": 0.1}}}
    assert merged(awake, STATUS)["coldStart"] == awake["coldStart"]


READY = condition("Ready", "True", "Serving")
ASLEEP = condition("Ready", "True", "ScaledToZero")
FITS_NOT = condition("Fits", "False", "DoesNotFit", "Needs 17 GiB.")
READY_NOT = condition("Ready", "False", "DoesNotFit", "Needs 17 GiB.")


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        ([], [ASLEEP], [("Normal", "ScaledToZero")]),
        ([ASLEEP], [ASLEEP], []),
        ([ASLEEP], [READY], [("Normal", "Serving")]),
        (
            [READY_NOT],
            [condition("Ready", "False", "DoesNotFit", "Needs 18 GiB.")],
            [],
        ),  # other words, same news
        ([ASLEEP], [FITS_NOT, READY_NOT], [("Warning", "DoesNotFit")]),  # one event a reason
        ([], [condition("Fits", "Unknown", "FitUnknown")], []),
        ([], [condition("Scheduled", "True", "Placed"), condition("Active", "True", "PodsExist")], []),
        ([], [condition("Scheduled", "False", "Unschedulable", "no GPU")], [("Warning", "Unschedulable")]),
        ([], [condition("Degraded", "True", "PodsFailing", "Killed")], [("Warning", "PodsFailing")]),
        ([], [condition("Ready", "False", "Suspended")], [("Normal", "Suspended")]),
    ],
)
def test_events_report_transitions_only(before, after, events):
    assert [(note.type, note.reason) for note in transitions(before, after)] == events


def test_a_note_longer_than_an_event_may_have_is_cut():
    document = {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "chat"}}
    model = parse(document | {"spec": {"model": {"uri": "hf://a/b"}}})
    note = transitions([], [condition("Ready", "False", "CrashBackOff", "é" * 2000)])[0]
    found = events(model, [note], 0.0, "operator-0")[0]
    assert len(found["note"].encode()) <= 1024
    assert found["note"].endswith("…")


LIVE = {**service(), "metadata": {"name": "chat", "namespace": "a", "uid": "7"}}


class RecordingApi:
    def __init__(self, code=0):
        self.calls, self.code = [], code

    async def request(self, method, path, budget=lambda: 10.0, **more):
        budget()
        self.calls.append((method, path, more.get("query", {})))
        if self.code:
            raise ApiError(path, self.code, "", "no")
        return {}


@pytest.mark.parametrize(
    ("kind", "version", "path"),
    [
        ("Service", "v1", "/api/v1/namespaces/a/services/chat"),
        ("Deployment", "apps/v1", "/apis/apps/v1/namespaces/a/deployments/chat"),
        ("InferenceModel", "wisp.dev/v1alpha1", "/apis/wisp.dev/v1alpha1/namespaces/a/inferencemodels/chat"),
    ],
)
def test_every_kind_has_its_path(kind, version, path):
    metadata = {"name": "chat", "namespace": "a"}
    assert path_of({"apiVersion": version, "kind": kind, "metadata": metadata}) == path


def test_an_apply_takes_its_fields_from_their_former_manager():
    api = RecordingApi()
    asyncio.run(ClusterWriter(api, Metrics(), lambda: 5.0).apply(service(), over=LIVE))
    assert api.calls[0][2] == {"fieldManager": "wisp-operator", "force": "true"}


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.apply(service(), over=None),
        lambda writer: writer.delete(LIVE),
        lambda writer: writer.emit(service()),
    ],
)
def test_a_replica_that_does_not_lead_writes_nothing(write):
    api = RecordingApi()
    with pytest.raises(NotLeading):
        asyncio.run(write(ClusterWriter(api, Metrics(), lambda: 0.0)))
    assert api.calls == []


def test_what_is_gone_need_not_be_deleted_and_a_lost_event_harms_nothing():
    cluster = ClusterWriter(RecordingApi(code=404), Metrics(), lambda: 5.0)
    asyncio.run(cluster.delete(LIVE))
    asyncio.run(cluster.emit({**service(), "type": "Normal"}))
    asyncio.run(cluster.annotate("Pod", "a", "chat-1", {"x": "1"}))
    with pytest.raises(ApiError):
        asyncio.run(ClusterWriter(RecordingApi(code=403), Metrics(), lambda: 5.0).delete(LIVE))


@pytest.mark.parametrize(
    ("kind", "labels", "key"),
    [("InferenceModel", {}, "a/chat"), ("Pod", {"wisp.dev/model": "other"}, "a/other"), ("Job", {}, "a/")],
)
def test_a_child_wakes_the_model_that_its_label_names(kind, labels, key):
    assert model_key(kind, {"metadata": {"name": "chat", "namespace": "a", "labels": labels}}) == key


async def until(claim):
    async with asyncio.timeout(60):
        while not claim():
            await asyncio.sleep(0.005)


def run_queue(scenario, reconcile, workers=2):
    async def main():
        queue = WorkQueue(Metrics())
        task = asyncio.create_task(queue.run(reconcile, workers))
        await scenario(queue)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_model_is_never_reconciled_twice_at_once_and_a_change_meanwhile_is_not_lost():
    reconciled, busy, proceed = [], set(), asyncio.Event()

    async def reconcile(key):
        assert key not in busy
        busy.add(key)
        reconciled.append(key)
        await proceed.wait()
        busy.discard(key)

    async def scenario(queue):
        for _ in range(5):
            queue.add("a/chat")
        await until(lambda: busy)
        for _ in range(5):
            queue.add("a/chat")
        proceed.set()
        await until(lambda: len(reconciled) == 2)
        await asyncio.sleep(0.05)

    run_queue(scenario, reconcile)
    assert reconciled == ["a/chat"] * 2


def test_a_reconcile_that_fails_is_tried_again_and_others_go_on(caplog):
    reconciled = []

    async def reconcile(key):
        reconciled.append(key)
        if key == "bad" and reconciled.count("bad") < 2:
            raise ApiError("PATCH x", 500, "", "no")

    async def scenario(queue):
        queue.add("bad")
        queue.add("good")
        await until(lambda: sorted(reconciled) == ["bad", "bad", "good"])

    run_queue(scenario, reconcile)
    assert (reconciled.count("bad"), reconciled.count("good")) == (2, 1)
    assert "again within 0.5 s" in caplog.text


def test_a_reconcile_may_ask_for_the_next_one():
    reconciled = []

    async def reconcile(key):
        reconciled.append(key)
        return 0.02 if len(reconciled) < 3 else None

    async def scenario(queue):
        queue.add("a/chat")
        await until(lambda: len(reconciled) == 3)
        await asyncio.sleep(0.05)

    run_queue(scenario, reconcile)
    assert len(reconciled) == 3
