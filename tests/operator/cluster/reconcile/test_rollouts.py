"""A change of the spec whose pods fail beside good ones: shown at once, and until it is over."""

import time
from dataclasses import replace

import pytest
from recording_cluster import World

from wisp_operator.cluster.reconcile.reconciler import ACTIVE_REQUEUE_S

NO_IMAGE = {"state": {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}}
CRASHED = {"exitCode": 1, "finishedAt": "2026-01-31T12:00:00Z"}
CRASH_LOOP = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": CRASHED},
    "restartCount": 1,
}


def condition_of(world, kind):
    found = next(entry for entry in world.status["conditions"] if entry["type"] == kind)
    return found["status"], found["reason"]


def current_pod(world, name, **state):
    """A pod of the template that the Deployment has now."""
    pod = world.pod(name, **state)
    template = world.indexes["Deployment"]["a/chat"][0]["spec"]["template"]
    pod["metadata"]["annotations"] = dict(template["metadata"]["annotations"])
    return pod


def serving_world(uri="hf://a/b"):
    world = World({"replicas": 1, "model": {"uri": uri}})
    world.reconcile()
    current_pod(world, "good")
    world.reconcile()
    assert condition_of(world, "Degraded") == ("False", "AsExpected")
    assert condition_of(world, "ArtifactsReady") == ("True", "Fetched")
    return world


def change(world, uri="hf://a/c"):
    world.model["spec"]["model"] = {"uri": uri}
    world.model["metadata"]["generation"] = 2
    world.reconcile()


@pytest.mark.parametrize("broken", [NO_IMAGE, CRASH_LOOP])
def test_a_rollout_that_fails_beside_a_good_pod_is_degraded_until_it_is_undone(broken):
    world = serving_world()
    change(world)
    current_pod(world, "bad", ready=False, **broken)
    for _ in range(3):  # a good pod forgives nothing by being there
        world.reconcile()
        assert condition_of(world, "Ready") == ("True", "Serving")
        assert condition_of(world, "Degraded") == ("True", "PodsFailing")
        assert world.status["lastFailure"]["count"] == 1
        assert world.status["observedGeneration"] == 2
        assert world.status["pods"] == "1/2"
    assert world.events.count("PodsFailing") == 1
    ready = next(entry for entry in world.status["conditions"] if entry["type"] == "Ready")
    assert world.status["lastFailure"]["reason"] in ready["message"]
    change(world, "hf://a/b")
    del world.indexes["Pod"]["a/chat"][1]
    world.reconcile()
    assert condition_of(world, "Degraded") == ("False", "AsExpected")
    assert condition_of(world, "Progressing") == ("False", "Settled")
    assert "lastFailure" not in world.status


def test_weights_of_a_new_uri_are_not_there_because_those_of_the_old_one_are():
    world = serving_world()
    change(world)
    assert condition_of(world, "ArtifactsReady") == ("False", "Fetching")
    assert condition_of(world, "Progressing") == ("True", "RollingOut")
    bad = current_pod(world, "bad", ready=False)
    world.reconcile()
    assert condition_of(world, "ArtifactsReady") == ("False", "Fetching")
    report = '{"reason": "ModelNotFound", "message": "no such repository"}'
    bad["status"]["containerStatuses"] = [{"state": {"terminated": {**CRASHED, "message": report}}}]
    world.reconcile()
    assert condition_of(world, "ArtifactsReady") == ("False", "FetchFailed")
    assert "FetchFailed" in world.events


def test_an_image_that_nobody_pulled_is_no_artifact_that_is_ready():
    world = World({"replicas": 1})  # file://: the weights themselves are in place
    world.reconcile()
    current_pod(world, "good")
    world.reconcile()
    current_pod(world, "bad", ready=False, **NO_IMAGE)
    world.reconcile()
    assert condition_of(world, "ArtifactsReady") == ("False", "FetchFailed")


def test_a_changed_installation_that_is_rolled_back_leaves_no_failure():
    world = serving_world()
    installed = world.dependencies.config
    changed = replace(installed, build=replace(installed.build, image="broken"))
    world.reconciler._dependencies = replace(world.dependencies, config=changed)
    world.reconcile()
    bad = current_pod(world, "bad", ready=False, **NO_IMAGE)
    world.reconcile()
    assert condition_of(world, "Degraded")[0] == "True"
    world.reconciler._dependencies = world.dependencies
    world.reconcile()
    bad["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    world.reconcile()
    assert condition_of(world, "Degraded")[0] == "False"


def test_a_pod_that_was_evicted_is_shown_until_another_takes_its_place():
    world = World({"replicas": 2})
    world.reconcile()
    for name in ("a", "b"):
        current_pod(world, name)
    world.reconcile()
    evicted = world.indexes["Pod"]["a/chat"][0]
    evicted["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
    for _ in range(2):
        world.reconcile()
        assert condition_of(world, "Degraded") == ("True", "PodsFailing")
    current_pod(world, "c", ready=False)
    world.reconcile()
    assert condition_of(world, "Degraded")[0] == "True"
    world.indexes["Pod"]["a/chat"].pop()
    current_pod(world, "c")
    world.reconcile()
    assert condition_of(world, "Degraded")[0] == "False"


def test_pods_that_a_quota_refuses_beside_a_good_one_are_shown_until_it_lets_them():
    world = World({"replicas": 2})
    world.reconcile()
    current_pod(world, "good")
    deployment = world.indexes["Deployment"]["a/chat"][0]
    refusal = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"}
    deployment["status"] = {"conditions": [refusal | {"lastUpdateTime": "2026-01-31T12:00:00Z"}]}
    for _ in range(2):
        world.reconcile()
        assert condition_of(world, "Degraded") == ("True", "PodsFailing")
        assert world.status["lastFailure"]["reason"] == "PodRefused"
        assert world.status["pods"] == "1/2"
    deployment["status"] = {}
    current_pod(world, "second")
    world.reconcile()
    assert condition_of(world, "Degraded")[0] == "False"


def test_a_new_leader_goes_on_with_a_rollout_that_fails():
    world = serving_world()
    change(world)
    current_pod(world, "bad", ready=False, **CRASH_LOOP)
    world.reconcile()
    world.reconciler.reset()
    world.reconcile()
    assert condition_of(world, "Degraded") == ("True", "PodsFailing")
    assert world.status["lastFailure"]["count"] == 1


def test_a_first_crash_after_health_is_no_failed_model_since_the_kubelet_starts_it_again_at_once():
    world = serving_world()
    world.ask(waiting=40)  # more than one pod's requests: the autoscaler would add pods
    pod = world.indexes["Pod"]["a/chat"][0]
    ended = {"exitCode": 137, "finishedAt": "2026-01-31T12:00:00Z"}
    world.indexes["Pod"]["a/chat"] = [restarted(pod, {"terminated": ended}, 0)]
    world.reconcile()
    assert (world.status["state"], condition_of(world, "Ready")) == ("Waking", ("False", "Restarting"))
    assert "SIGKILL" in world.status["conditions"][4]["message"]
    assert condition_of(world, "Degraded")[0] == "True"
    world.indexes["Pod"]["a/chat"] = [restarted(pod, {"running": {}}, 1, ended)]
    world.reconcile()
    assert (world.status["state"], condition_of(world, "Ready")) == ("Waking", ("False", "Restarting"))
    world.indexes["Pod"]["a/chat"] = [restarted(pod, {"running": {}}, 1, ended, ready="True")]
    world.reconcile()
    assert (world.status["state"], condition_of(world, "Degraded")[0]) == ("Ready", "False")
    assert world.events[-3:] == ["Restarting", "PodsFailing", "Serving"]


def test_a_second_crash_without_health_in_between_is_a_failed_model():
    world = serving_world()
    pod = world.indexes["Pod"]["a/chat"][0]
    ended = {"exitCode": 137, "finishedAt": "2026-01-31T12:00:00Z"}
    for state, restarts in [({"terminated": ended}, 0), ({"running": {}}, 1), ({"terminated": ended}, 1)]:
        world.indexes["Pod"]["a/chat"] = [restarted(pod, state, restarts, ended if restarts else None)]
        world.reconcile()
    assert (world.status["state"], condition_of(world, "Ready")) == ("Failed", ("False", "CrashBackOff"))


def restarted(pod, state, restarts, last=None, ready="False"):
    """The pod with its container in this state, as the kubelet reports it."""
    container = {"state": state, "restartCount": restarts, "lastState": {"terminated": last} if last else {}}
    stamp = "2026-01-31T12:00:02Z"
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": stamp}]
    return {**pod, "status": {**pod["status"], "conditions": conditions, "containerStatuses": [container]}}


def test_a_pod_killed_at_a_limit_that_only_a_limit_range_gave_it_is_replaced_not_restarted():
    world = World({"replicas": 1})
    world.reconcile()
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-31T12:00:00Z"}
    pod = current_pod(world, "chat-1", ready=False, state={"terminated": killed})
    pod["spec"]["containers"] = [{"resources": {"limits": {"memory": "40Mi"}}}]
    world.reconcile()
    assert (world.replicas, world.status["lastFailure"]["reason"]) == (0, "OOMKilled")
    assert "40Mi" in world.status["lastFailure"]["message"]
    world.indexes["Pod"].clear()
    assert world.reconcile() == ACTIVE_REQUEUE_S  # also while it waits for its next try
    assert world.replicas == 1  # made under the limits of now


def test_a_replaced_pod_is_no_success_of_the_one_beside_it():
    """Else a limit that nobody raises would turn Degraded off and on, once for each new pod."""
    world = World({"replicas": 2})
    world.reconcile()
    current_pod(world, "good")
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-31T12:00:00Z"}
    pod = current_pod(world, "bad", ready=False, state={"terminated": killed})
    pod["spec"]["containers"] = [{"resources": {"limits": {"memory": "40Mi"}}}]
    world.reconcile()
    assert world.replicas == 1  # without the bad one
    world.indexes["Pod"]["a/chat"].remove(pod)
    for _ in range(2):
        world.reconcile()
        assert (world.replicas, condition_of(world, "Degraded")) == (2, ("True", "PodsFailing"))
    current_pod(world, "new")
    world.reconcile()
    assert condition_of(world, "Degraded") == ("False", "AsExpected")


def test_a_pod_killed_at_its_specs_own_limit_is_restarted():
    world = World({"replicas": 1, "resources": {"limits": {"memory": "40Mi"}}})
    world.reconcile()
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-31T12:00:00Z"}
    pod = current_pod(world, "chat-1", ready=False, state={"terminated": killed})
    pod["spec"]["containers"] = [{"resources": {"limits": {"memory": "40Mi"}}}]
    world.reconcile()
    assert world.replicas == 1


def test_a_model_that_waits_for_its_next_try_is_reconciled_for_it():
    world = World({"replicas": 1})
    world.reconcile()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": now}
    pod = current_pod(world, "chat-1", ready=False, state={"terminated": killed})
    pod["spec"]["containers"] = [{"resources": {"limits": {"memory": "40Mi"}}}]
    world.reconcile()
    world.indexes["Pod"].clear()
    assert world.reconcile() == ACTIVE_REQUEUE_S
    assert (world.replicas, world.status["state"]) == (0, "Failed")


def test_a_spec_that_works_again_is_not_degraded_by_the_last_pods_of_the_one_that_did_not():
    world = World({"replicas": 1, "model": {"uri": "hf://a/b"}})
    world.reconcile()
    bad = current_pod(world, "bad", ready=False, **CRASH_LOOP)
    world.reconcile()
    change(world)
    current_pod(world, "good")
    for crashes in (1, 2):  # it goes on until it is deleted
        bad["status"]["containerStatuses"] = [{**CRASH_LOOP, "restartCount": crashes}]
        world.reconcile()
        assert condition_of(world, "Degraded") == ("False", "AsExpected")
        assert "lastFailure" not in world.status


def test_a_job_that_fetched_the_old_uri_proves_nothing_about_the_new_one():
    cache = {"type": "PVC", "prefetch": True}
    world = World({"model": {"uri": "hf://a/b"}, "cache": cache})
    world.reconcile()
    (job,) = (found[0] for key, found in world.indexes["Job"].items() if not key.startswith("of "))
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.reconcile()
    assert condition_of(world, "ArtifactsReady") == ("True", "Fetched")

    async def later(document):
        """The event of a deletion comes later."""

    world.delete = later
    change(world)
    assert condition_of(world, "ArtifactsReady") == ("False", "Fetching")
