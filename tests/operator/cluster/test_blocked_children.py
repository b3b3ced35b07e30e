"""Children that cannot be made: shown on their model, and no other child's matter."""

import asyncio
from dataclasses import replace

import pytest
from recording_cluster import World

from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.reconcile import blockages
from wisp_operator.cluster.reconcile.reconciler import Reconciler

SERVICE_RANGE_FULL = ApiError("PATCH", 500, "InternalError", "failed to allocate a serviceIP: range is full")


def condition_of(world, kind):
    return next(entry for entry in world.status["conditions"] if entry["type"] == kind)


@pytest.mark.parametrize(
    ("strangers", "refused", "reason", "words"),
    [
        (
            {("Service", "a", "chat"): {"metadata": {"name": "chat"}, "kind": "Service"}},
            {},
            "NameTaken",
            "chat",
        ),
        ({}, {"Service": SERVICE_RANGE_FULL}, "ChildRefused", "range is full"),
        ({}, {"NetworkPolicy": ApiError("PATCH", 403, "Forbidden", "quota")}, "ChildRefused", "quota"),
        # The server quotes the tenant's values; the CRD refuses a status with a longer sentence.
        ({}, {"Service": ApiError("PATCH", 422, "Invalid", "x" * 100_000)}, "ChildRefused", "xxx"),
    ],
)
def test_a_child_that_cannot_be_made_is_shown_and_the_others_are_made(strangers, refused, reason, words):
    world = World({"replicas": 2})
    world.strangers, world.refused = strangers, refused
    world.reconcile()
    assert world.replicas == 0  # a pod lacks what cannot be made
    assert world.status["state"] == "Failed"
    assert condition_of(world, "Ready")["reason"] == reason
    assert words in condition_of(world, "Ready")["message"]
    assert max(len(entry["message"]) for entry in world.status["conditions"]) < 32768
    assert world.events.count(reason) == 1
    world.strangers, world.refused = {}, {}
    world.reconciler._applier.forget("a/chat")  # the time until the next try
    world.reconcile()
    assert world.replicas == 2


def test_a_refused_child_is_not_tried_again_at_every_request():
    world = World()
    world.refused = {"Service": SERVICE_RANGE_FULL}
    for _ in range(20):
        world.ask()
        world.reconcile()
    assert world.writes.count("?Service") == 1
    assert world.replicas == 0


def test_a_server_that_is_away_is_no_refusal():
    world = World()
    away = ApiError("PATCH", 0, "", "no answer")
    world.refused = {"Service": away, "NetworkPolicy": away}
    with pytest.raises(ApiError):
        world.reconcile()
    assert world.statuses == []


@pytest.mark.parametrize("code", [0, 429, 503, 504])
def test_one_child_without_an_answer_is_shown_and_the_others_are_made(code):
    world = World({"replicas": 1})
    world.refused = {"Service": ApiError("PATCH", code, "", "no answer: TimeoutError")}
    world.reconcile()
    assert set(world.writes) >= {"NetworkPolicy", "Deployment"}
    assert world.replicas == 0
    assert "Service chat could not be applied: no answer" in condition_of(world, "Ready")["message"]
    assert world.events.count("ChildRefused") == 1
    world.refused = {}
    world.reconciler._applier.forget("a/chat")  # the time until the next try
    world.reconcile()
    assert (world.replicas, world.status["state"]) == (1, "Waking")


def test_a_webhook_that_hangs_keeps_no_status_waiting(monkeypatch):
    monkeypatch.setattr(blockages, "FIRST_ANSWER_S", 0.05)
    world = World()
    apply = world.apply

    async def hang(manifest, over):
        await asyncio.sleep(60 if manifest["kind"] == "NetworkPolicy" else 0)
        return await apply(manifest, over)

    world.apply = hang
    world.reconcile()
    assert "NetworkPolicy chat could not be applied: no answer" in condition_of(world, "Ready")["message"]
    assert {"Service", "Deployment"} <= set(world.writes)


def test_an_update_without_an_answer_leaves_pods_serving():
    world = World({"replicas": 1})
    world.reconcile()
    world.pod("chat-1")
    world.model["spec"]["runtime"] = {"maxConcurrent": 4}
    world.refused = {"Deployment": ApiError("PATCH", 0, "", "no answer")}
    world.reconcile()
    assert (world.status["state"], condition_of(world, "Degraded")["reason"]) == ("Ready", "ChildRefused")


def test_a_child_that_cannot_be_deleted_is_shown_too():
    world = World({"replicas": 2})
    world.reconcile()
    world.model["spec"]["replicas"] = 1

    async def refuse(document):
        raise ApiError("DELETE", 403, "Forbidden", "a webhook says no")

    delete, world.delete = world.delete, refuse
    world.reconcile()
    assert "PodDisruptionBudget chat could not be deleted" in condition_of(world, "Degraded")["message"]
    world.delete = delete
    world.reconciler._applier.forget("a/chat")
    world.reconcile()
    assert condition_of(world, "Degraded")["status"] == "False"


def test_a_refused_child_that_is_no_longer_wanted_is_not_tried_again():
    world = World({"replicas": 2})
    world.refused = {"PodDisruptionBudget": ApiError("PATCH", 403, "Forbidden", "no")}
    world.reconcile()
    assert condition_of(world, "Degraded")["reason"] == "ChildRefused"
    world.model["spec"]["replicas"] = 0
    assert world.reconcile() is None
    assert condition_of(world, "Degraded")["status"] == "False"


@pytest.mark.parametrize("call", ["annotate", "warnings_about"])
def test_what_only_helps_stops_no_reconcile(call):
    world = World({"replicas": 1})
    marking = replace(world.dependencies.config, marks_idle_pods=True)
    world.reconciler = Reconciler(replace(world.dependencies, config=marking))
    for name in ("a", "b"):
        world.pod(name, running=1)
    world.pod("c", ready=False, state={"waiting": {"reason": "ContainerCreating"}})

    async def refuse(*_):
        raise ApiError("GET", 403, "Forbidden", "no")

    setattr(world, call, refuse)
    world.reconcile()
    assert world.status["state"] == "Ready"


def test_pods_that_serve_do_so_though_their_deployment_cannot_be_changed():
    world = World({"replicas": 1})
    world.reconcile()
    world.pod("chat-1")
    world.model["spec"]["replicas"] = 2
    world.refused = {"Deployment": ApiError("PATCH", 403, "Forbidden", "no more than 1")}
    world.reconcile()
    assert world.status["state"] == "Ready"
    assert condition_of(world, "Degraded")["reason"] == "ChildRefused"


def test_a_pod_that_only_carries_the_models_label_is_not_the_models():
    world = World({"replicas": 1})
    world.pod("stranger")["metadata"]["ownerReferences"] = []
    world.reconcile()
    assert (world.status.get("replicas", 0), world.annotated) == (0, {})


def test_what_we_did_not_foresee_is_shown_on_its_model_and_goes_when_it_is_over():
    world = World()
    world.reconcile()
    good = world.dependencies.fit_checker.verdict
    world.dependencies.fit_checker.verdict = lambda model, devices: 1 / 0
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            world.reconcile()
    assert len(world.statuses) == 2  # said once
    assert condition_of(world, "Degraded")["reason"] == "ReconcileFailed"
    assert "ZeroDivisionError" in condition_of(world, "Degraded")["message"]
    assert world.status["state"] == "Asleep"  # what was true is kept
    world.dependencies.fit_checker.verdict = good
    world.reconcile()
    assert condition_of(world, "Degraded")["status"] == "False"


def test_a_model_that_never_was_processed_says_why():
    world = World()
    world.dependencies.fit_checker.verdict = lambda model, devices: 1 / 0
    with pytest.raises(ZeroDivisionError):
        world.reconcile()
    assert world.status["state"] == "Failed"
    assert condition_of(world, "Ready")["reason"] == "ReconcileFailed"


def test_a_status_that_cannot_be_restored_is_begun_anew():
    world = World()
    world.model["status"] = {
        "observedGeneration": 1,
        "lastFailure": {"time": "yesterday"},
        "conditions": [{}],
    }
    world.reconcile()
    assert world.status["state"] == "Asleep"


def test_many_pods_without_their_volumes_cost_a_few_requests_each_time():
    world = World({"replicas": 1})
    asked = []

    async def warnings_about(namespace, pod):
        asked.append(pod)
        return []

    world.warnings_about = warnings_about
    for number in range(50):
        world.pod(f"p{number}", ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    world.reconcile()
    assert len(asked) == 4
