"""One reconcile against a recording cluster: objects applied, deleted and kept, statuses written."""

import copy
import logging
import time
from dataclasses import replace

import pytest
from recording_cluster import TOO_LARGE, UNKNOWN, World

from wisp_operator.api import parse
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.reconcile import blockages
from wisp_operator.cluster.reconcile.fitting import Verdict
from wisp_operator.cluster.reconcile.pod_requests import DELETION_COST
from wisp_operator.cluster.reconcile.reconciler import UNNAMED_REQUEUE_S, Reconciler
from wisp_operator.cluster.reconcile.reporting import UNCHECKED_S
from wisp_operator.core.access.policy import Policy
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.times import timestamp
from wisp_operator.desired.inference_pool import ANNOTATION


def test_the_first_reconcile_makes_the_children_and_one_status():
    world = World()
    assert world.reconcile() is None  # nothing to wait for: an event follows
    assert world.writes == ["NetworkPolicy", "Service", "Deployment"]  # a pod needs the first two
    assert len(world.statuses) == 1
    assert world.status["state"] == "Asleep"
    assert world.status["url"] == "http://gw/a/chat/v1"
    assert world.events == ["ScaledToZero"]


def test_a_model_whose_served_name_another_holds_says_so_and_is_looked_at_again():
    world = World({"model": {"uri": "file:///srv", "servedName": "llama"}})
    world.model["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    other = copy.deepcopy(world.model)
    other["metadata"] |= {"namespace": "prod", "name": "llama", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.indexes["InferenceModel"]["prod/llama"] = [other]
    assert world.reconcile() == UNNAMED_REQUEUE_S
    assert world.status["names"] == ["chat"]
    named = next(found for found in world.status["conditions"] if found["type"] == "Named")
    assert (named["status"], named["reason"]) == ("False", "ServedNameTaken")
    assert world.events == ["ScaledToZero", "ServedNameTaken"]
    world.model["spec"]["model"]["servedName"] = "prod/llama"
    world.model["metadata"]["name"] = "chat"
    world.reconcile()
    assert world.status["names"] == ["chat"]
    world.model["spec"]["model"]["servedName"] = "Llama"
    assert world.reconcile() is None
    assert world.status["names"] == ["Llama", "chat"]
    assert world.events[2:] == ["NameHeld"]


def test_the_second_reconcile_writes_nothing():
    world = World()
    world.reconcile()
    world.writes.clear()
    world.reconcile()
    assert (world.writes, len(world.statuses), world.events) == ([], 1, ["ScaledToZero"])


def test_a_waiting_request_raises_replicas_at_once():
    world = World()
    world.reconcile()
    world.ask()
    assert world.reconcile() == 1.0
    assert world.replicas == 1
    assert world.status["state"] == "Waking"
    assert world.dependencies.metrics.total("wakes", why="Wake") == 1


def test_nothing_is_made_before_it_is_known_whether_it_fits():
    world = World()
    world.verdict = None
    world.model["metadata"]["creationTimestamp"] = timestamp(time.time())
    assert world.reconcile() == UNCHECKED_S
    assert (world.writes, world.statuses) == ([], [])


def test_a_model_whose_fit_takes_long_to_check_says_so():
    world = World()
    world.verdict = None
    world.model["metadata"]["creationTimestamp"] = timestamp(time.time() - 3)
    for _ in range(2):
        assert world.reconcile() is None
    assert (world.writes, len(world.statuses)) == ([], 1)
    reasons = {entry["type"]: entry["reason"] for entry in world.status["conditions"]}
    assert reasons == {"Accepted": "Accepted", "Fits": "FitUnknown", "Ready": "FitUnknown"}
    world.verdict = UNKNOWN
    world.reconcile()
    assert world.status["state"] == "Asleep"


def test_a_model_that_does_not_fit_stays_at_zero_despite_demand():
    world = World()
    world.verdict = TOO_LARGE
    world.ask()
    world.reconcile()
    assert world.replicas == 0
    assert (world.status["state"], world.status["fit"]["verdict"]) == ("Failed", "DoesNotFit")


def test_a_new_leader_removes_no_pods_at_first():
    world = World({"scaling": {"max": 3, "idleAfter": "1s"}}, led_for_s=1.0)
    world.ask(waiting=40)
    world.reconcile()
    for name in ("chat-1", "chat-2", "chat-3"):
        world.pod(name)
    world.ask(waiting=0)
    world.reconciler.reset()
    world.reconcile()
    assert world.replicas == 3


def test_the_spare_pod_of_a_rolling_update_is_not_asked_for_again():
    world = World({"scaling": {"max": 5}})
    world.ask()
    world.reconcile()
    world.pod("chat-old", ready=False)
    world.pod("chat-new", ready=False)  # a changed spec, while nobody was ready yet
    for _ in range(3):
        world.ask()
        world.reconcile()
    assert world.replicas == 1


def test_a_leader_of_some_time_lets_an_idle_model_sleep():
    world = World({"scaling": {"idleAfter": "2s"}})
    world.pod("chat-1")
    world.reconcile()
    assert world.replicas == 1  # it counts as asked for when it is first seen
    time.sleep(2.1)
    world.reconcile()
    assert world.replicas == 0


def test_a_pod_that_is_busy_without_a_gateways_report_is_not_removed():
    world = World({"scaling": {"idleAfter": "100ms"}})
    world.pod("chat-1", running=2)
    world.reconcile()
    time.sleep(0.15)
    world.reconcile()
    assert world.replicas == 1
    assert world.status["queue"]["running"] == 2


@pytest.mark.parametrize("is_marked", [True, False])
def test_the_least_loaded_pods_are_marked_to_go_first_where_that_is_wanted(is_marked):
    world = World({"replicas": 1})
    marking = replace(world.dependencies.config, marks_idle_pods=is_marked)
    world.reconciler = Reconciler(replace(world.dependencies, config=marking))
    world.pod("old-busy", age_s=90, running=4)
    world.pod("young-busy", age_s=30, running=1)
    world.pod("starting", age_s=1, ready=False)
    world.reconcile()
    order = sorted(world.annotated, key=lambda name: int(world.annotated[name][DELETION_COST]))
    assert order == (["starting", "young-busy", "old-busy"] if is_marked else [])


def test_a_budget_comes_with_the_second_pod_and_goes_with_it():
    world = World({"replicas": 2})
    world.reconcile()
    assert "PodDisruptionBudget" in world.writes
    world.model["spec"]["replicas"] = 1
    world.reconcile()
    assert world.writes[-1] == "-PodDisruptionBudget"


@pytest.mark.parametrize(
    ("optional", "annotations", "made"),
    [
        ((), {ANNOTATION: "epp:9002"}, set()),
        (("PodMonitor", "InferencePool"), {}, {"PodMonitor"}),
        (("InferencePool",), {ANNOTATION: "epp:9002"}, {"InferencePool"}),
        (("InferencePool",), {ANNOTATION: "not a service"}, set()),
    ],
)
def test_optional_kinds_are_made_where_the_cluster_has_them_and_the_model_asks(optional, annotations, made):
    world = World(annotations=annotations, optional=optional)
    world.reconcile()
    assert set(world.writes) & {"PodMonitor", "InferencePool"} == made


def test_a_failure_outlives_the_pod_and_the_operator():
    world = World({"replicas": 1})
    report = '{"reason": "ModelNotFound", "message": "nothing there"}'
    last = {"exitCode": 1, "message": report, "finishedAt": "2026-01-31T12:00:00Z"}
    broken = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": last},
        "restartCount": 2,
    }
    world.pod("chat-1", ready=False, **broken)
    world.reconcile()
    assert world.status["lastFailure"]["reason"] == "ModelNotFound"
    assert world.status["lastFailure"]["count"] == 2
    world.indexes["Pod"].clear()
    world.reconciler.reset()  # as a new leader begins
    world.reconcile()
    assert world.status["lastFailure"]["reason"] == "ModelNotFound"
    assert world.status["lastFailure"]["count"] == 2


def test_a_changed_spec_clears_the_old_ones_failures():
    test = World({"replicas": 1})
    test.pod("chat-1", ready=False, state={"waiting": {"reason": "ErrImagePull", "message": "no"}})
    test.reconcile()
    assert test.status["state"] == "Failed"
    test.model["metadata"]["generation"] = 2
    test.indexes["Pod"].clear()
    test.reconcile()
    assert "lastFailure" not in test.status


def test_a_volume_that_is_not_mounted_is_checked_and_named():
    world = World({"replicas": 1})
    world.pod("chat-1", ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    world.reconcile()
    assert world.status["lastFailure"]["reason"] == "VolumeFailed"
    assert world.status["state"] == "Failed"


def test_an_object_that_this_operator_cannot_read_says_so_once_and_keeps_its_children():
    world = World()
    world.reconcile()
    world.model["spec"]["future"] = 1
    world.model["metadata"]["generation"] = 2
    world.writes.clear()
    world.reconcile()
    world.reconcile()
    assert world.writes == []
    assert len(world.statuses) == 2
    assert world.status["conditions"][0]["reason"] == "Invalid"
    assert "spec.future" in world.status["conditions"][0]["message"]


@pytest.mark.parametrize("gone", ["deleted", "deleting"])
def test_a_model_that_goes_gets_nothing_any_more(gone):
    world = World()
    if gone == "deleted":
        world.indexes["InferenceModel"].clear()
    else:
        world.model["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    world.reconcile()
    assert (world.writes, world.statuses) == ([], [])


def test_where_only_some_gpus_are_large_enough_pods_go_only_there():
    world = World({"gpu": {"count": 1}})
    world.verdict = Verdict(FitReport("Fits", "Fits."), ("NVIDIA-L4",))
    world.reconcile()
    pod = world.indexes["Deployment"]["a/chat"][0]["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert terms[0]["matchExpressions"][0]["values"] == ["NVIDIA-L4"]


def test_the_model_read_from_the_cluster_is_the_one_the_user_wrote():
    assert parse(World().model).key == "a/chat"


def test_a_model_that_is_not_allowed_has_no_children_and_says_why():
    world = World(policy=Policy())
    assert world.reconcile() is None
    assert world.writes == []
    ready = {condition["type"]: condition for condition in world.status["conditions"]}["Ready"]
    assert (world.status["state"], ready["reason"]) == ("Failed", "NotAllowed")
    assert "policy.fileDirectories" in ready["message"]
    assert world.events == ["NotAllowed"]
    world.reconcile()
    assert (len(world.statuses), len(world.events)) == (1, 1)


def test_a_refused_model_whose_pods_cannot_be_ended_is_tried_ever_less_often_and_says_so_once(
    monkeypatch, caplog
):
    world = World(spec={"replicas": 1})
    world.reconcile()
    closed = replace(world.dependencies.config, policy=Policy())
    world.reconciler = Reconciler(replace(world.dependencies, config=closed))
    world.refused = {"Deployment": ApiError("PATCH", 403, "Forbidden", "a webhook says no")}
    retries, now_s = [], [time.monotonic()]
    monkeypatch.setattr(blockages.time, "monotonic", lambda: now_s[0])
    for tries in range(1, 4):
        retries += [world.reconcile() for _ in range(5)]  # other events
        assert world.writes.count("?Deployment") == tries
        now_s[0] += 60
    assert [retries[0], retries[5], retries[10]] == pytest.approx([1, 2, 4])
    assert "could not be ended" in world.status["conditions"][0]["message"]
    assert (len(world.statuses), world.events.count("NotAllowed")) == (2, 1)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 2


def test_pods_of_a_model_that_is_no_longer_allowed_end_and_come_back_when_it_is():
    world = World(spec={"replicas": 1})
    world.reconcile()
    assert world.replicas == 1
    closed = replace(world.dependencies.config, policy=Policy())
    world.reconciler = Reconciler(replace(world.dependencies, config=closed))
    world.reconcile()
    assert world.replicas == 0
    assert world.status["state"] == "Failed"
    world.reconciler = Reconciler(world.dependencies)
    world.reconcile()
    assert world.replicas == 1
    assert world.status["state"] == "Waking"


def test_objects_of_other_models_cost_a_reconcile_nothing():
    world = World(optional=("PodMonitor", "InferencePool"))

    class Index(dict):
        def values(self):
            pytest.fail("looks at every object of the cluster")

    for kind in ("Job", "PodDisruptionBudget", "PodMonitor", "InferencePool"):
        world.indexes[kind] = Index(world.indexes[kind])
    world.reconcile()


def test_forged_children_without_number_are_deleted_some_at_a_time():
    world = World()
    world.reconcile()
    budget = copy.deepcopy(world.indexes["Deployment"]["a/chat"][0])
    for number in range(100):
        forged = copy.deepcopy(budget) | {"kind": "PodDisruptionBudget"}
        forged["metadata"]["name"] = f"forged-{number}"
        world.put(forged)
    world.writes.clear()
    world.reconcile()
    assert 0 < world.writes.count("-PodDisruptionBudget") <= 32
    for _ in range(8):
        world.reconcile()
    assert world.writes.count("-PodDisruptionBudget") == 100
