"""Pods as the API server returns them, read as observed pods and as named failures."""

import json

import pytest

from wisp_operator.cluster.observation.failures import (
    failure_of,
    is_backing_off,
    replica_failure,
    times_failed,
    volume_failure,
)
from wisp_operator.cluster.observation.pods import address_of, observed_pod, prefetch_of
from wisp_operator.core import runtime_state

CREATED, STARTED = "2026-01-31T12:00:00Z", "2026-01-31T12:00:03Z"
T0 = 1769860800.0
RUNNING = {"state": {"running": {"startedAt": STARTED}}, "restartCount": 0}
UNSCHEDULABLE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def pod(container=None, conditions=(), node="node1", **more):
    """A pod; ``conditions`` are (type, status, message)."""
    resources = {"limits": {"memory": "48Mi"}}
    probe = {"periodSeconds": 1, "failureThreshold": 4}
    spec = {"containers": [{"image": "wisp:1", "resources": resources, "startupProbe": probe}]}
    listed = [
        {"type": kind, "status": status, "message": message, "lastTransitionTime": "2026-01-31T12:00:05Z"}
        for kind, status, message in conditions
    ]
    status = {
        "conditions": listed,
        "phase": more.pop("phase", "Running"),
        "podIP": more.pop("ip", "10.0.0.7"),
    }
    if container:
        status["containerStatuses"] = [container]
    status |= more.pop("status", {})
    return {
        "metadata": {"name": "chat-1", "namespace": "a", "creationTimestamp": CREATED, **more},
        "spec": spec | ({"nodeName": node} if node else {}),
        "status": status,
    }


def waiting(reason, message="", restarts=0, last=None):
    return {
        "state": {"waiting": {"reason": reason, "message": message}},
        "restartCount": restarts,
        "lastState": {"terminated": last} if last else {},
    }


def ended(code, message="", reason="Error", started=STARTED, finished="2026-01-31T12:00:04Z"):
    times = {"startedAt": started, "finishedAt": finished}
    return {"exitCode": code, "message": message, "reason": reason, **times}


READY = ("Ready", "True", "")


@pytest.mark.parametrize(
    ("seen", "was_ready", "phase"),
    [
        (pod(node="", conditions=[("PodScheduled", "False", UNSCHEDULABLE)]), None, "Pending"),
        (pod(waiting("ContainerCreating")), None, "Starting"),
        (pod(RUNNING), None, "Starting"),
        (pod(RUNNING, [READY]), None, "Ready"),
        (pod(RUNNING, [("Ready", "False", "")]), T0, "Unready"),
        (pod(waiting("CrashLoopBackOff", last=ended(1))), None, "BackingOff"),
        (pod({"state": {"terminated": ended(1)}}), None, "BackingOff"),
        (pod(waiting("ImagePullBackOff")), None, "BackingOff"),
        (pod(RUNNING, [READY], deletionTimestamp=CREATED), None, "Draining"),  # outranks ready
    ],
)
def test_a_pods_phase_is_what_its_conditions_and_container_say(seen, was_ready, phase):
    assert observed_pod(seen, None, was_ready).phase == phase


def test_what_the_scheduler_says_is_kept():
    seen = pod(node="", conditions=[("PodScheduled", "False", UNSCHEDULABLE)])
    assert observed_pod(seen, None, None).pending_message == UNSCHEDULABLE


def test_the_phase_before_the_runtimes_own_is_from_creation_until_its_container_ran():
    state = {"status": "loading", "phases": [{"name": "import", "seconds": 0.4, "state": "done"}]}
    phases = observed_pod(pod(RUNNING), runtime_state.parse(state), None).runtime.phases
    assert [(phase.name, phase.seconds) for phase in phases] == [("schedule", 3.0), ("import", 0.4)]


@pytest.mark.parametrize(
    ("container", "ip", "address"),
    [
        (RUNNING, "10.0.0.7", "10.0.0.7:8000"),
        (RUNNING, "fd00::7", "[fd00::7]:8000"),
        (RUNNING, "", ""),
        (waiting("ContainerCreating"), "10.0.0.7", ""),  # nobody listens yet
    ],
)
def test_a_pod_is_polled_only_where_its_container_listens(container, ip, address):
    assert address_of(pod(container, ip=ip), 8000) == address


TOLD = json.dumps({"reason": "DoesNotFit", "message": "needs 17 GiB", "details": {"neededBytes": 17}})


@pytest.mark.parametrize(
    ("container", "reason", "says"),
    [
        (waiting("CrashLoopBackOff", last=ended(3, TOLD)), "DoesNotFit", "needs 17 GiB"),
        (waiting("CrashLoopBackOff", last=ended(137, "", "OOMKilled")), "OOMKilled", "its limit of 48Mi"),
        (waiting("CrashLoopBackOff", last=ended(137)), "Killed", "SIGKILL"),
        (
            waiting("CrashLoopBackOff", last=ended(1, "a\nTraceback: b")),
            "Crashed",
            "code 1. Last output: Trace",
        ),
        (
            waiting("CrashLoopBackOff", last=ended(1, '{"x": 1}')),
            "Crashed",
            "exit code 1",
        ),  # JSON, but not ours
        (
            waiting("CrashLoopBackOff", last=ended(0, finished="2026-01-31T12:00:08Z")),
            *("StartupTimedOut", "within 4 s"),
        ),
        (
            waiting("ErrImagePull", "not found"),
            "ImagePullFailed",
            "Image wisp:1 could not be pulled: not found",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "hf" not found'),
            "SecretMissing",
            "Secret hf does not exist",
        ),
        (
            waiting("CreateContainerConfigError", "couldn't find key HF_TOKEN in Secret a/hf"),
            *("SecretMissing", "Secret hf of namespace a has no key HF_TOKEN"),
        ),
        (
            waiting("CreateContainerConfigError", "failed to sync secret cache: timed out waiting"),
            *("ContainerRefused", "has not read a Secret of the pod yet; its kubelet tries again by itself"),
        ),
        (waiting("RunContainerError", "exec format error"), "ContainerRefused", "exec format error"),
    ],
)
def test_every_way_to_fail_has_a_name_and_a_sentence(container, reason, says):
    failure = failure_of(pod(container), T0)
    assert failure.reason == reason
    assert says in failure.message
    assert is_backing_off(pod(container))


def test_a_folder_that_a_claim_does_not_have_is_the_model_not_found():
    stuck = pod(
        waiting("CreateContainerConfigError", 'failed to create subPath directory for volumeMount "model"')
    )
    stuck["spec"]["volumes"] = [{"name": "model", "persistentVolumeClaim": {"claimName": "weights"}}]
    stuck["spec"]["containers"][0]["volumeMounts"] = [{"name": "model", "subPath": "qwen3"}, {"name": "tmp"}]
    failure = failure_of(stuck, T0)
    assert failure.reason == "ModelNotFound"
    assert failure.message.startswith("Claim weights has no folder qwen3;")


def test_an_image_with_weights_that_cannot_be_pulled_is_the_one_named():
    stuck = pod(waiting("ErrImagePull", 'failed to pull "ghcr.io/acme/chat:1"'))
    stuck["spec"]["volumes"] = [{"name": "model", "image": {"reference": "ghcr.io/acme/chat:1"}}]
    assert failure_of(stuck, T0).message.startswith("Image ghcr.io/acme/chat:1 could not be pulled")


def test_a_pod_that_was_ready_cannot_have_been_too_slow_to_start():
    served = waiting("CrashLoopBackOff", last=ended(137, finished="2026-01-31T13:00:00Z"))
    assert failure_of(pod(served), T0, was_ready=True).reason == "Killed"
    assert failure_of(pod(served), T0, was_ready=False).reason == "StartupTimedOut"


def test_an_evicted_pod_failed_without_a_container():
    gone = pod(phase="Failed", status={"reason": "Evicted", "message": "The node was low on memory."})
    assert failure_of(gone, T0).reason == "Evicted"
    assert times_failed(gone) == 1


@pytest.mark.parametrize(
    ("container", "count"),
    [
        (RUNNING, 0),
        (waiting("ContainerCreating"), 0),
        ({"state": {"terminated": ended(1)}, "restartCount": 0}, 1),
        (waiting("CrashLoopBackOff", restarts=1, last=ended(1)), 1),  # the same ending, seen later
        ({"state": {"terminated": ended(1)}, "restartCount": 1}, 2),
        (waiting("ImagePullBackOff"), 1),
    ],
)
def test_each_failure_counts_once(container, count):
    assert times_failed(pod(container)) == count


def test_volumes_that_fail_show_in_events_alone():
    mounted = [{"reason": "FailedMount", "message": "hostPath type check failed: /srv/x is not a directory"}]
    assert "/srv/x is not a directory" in volume_failure(mounted, T0).message
    assert volume_failure([{"reason": "BackOff"}], T0) is None


def test_pods_that_may_not_be_created_show_in_the_deployment():
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    assert replica_failure({"status": {"conditions": [condition]}}, T0).message == "exceeded quota: gpus"
    assert replica_failure({"status": {"conditions": [condition | {"status": "False"}]}}, T0) is None
    assert replica_failure(None, T0) is None


@pytest.mark.parametrize(
    ("outcomes", "prefetch"),
    [
        ((), None),
        (("",), "Running"),
        (("Complete",), "Done"),
        (("Complete", ""), "Running"),
        (("Failed", ""), "Failed"),
    ],
)
def test_fetching_is_done_when_every_job_is(outcomes, prefetch):
    jobs = [
        {"status": {"conditions": [{"type": outcome, "status": "True"}] if outcome else []}}
        for outcome in outcomes
    ]
    assert prefetch_of(jobs) == prefetch
