"""Faults of a model's own pods: processes that end or hang, rollouts that fail, pods without a place."""

import os
import signal
import time
from contextlib import suppress

import pytest
from fault_table import ASLEEP, HOLD, TINY, WARM, needs_our_node, table
from kube import apply, get, kubectl, until
from node_processes import away, below, engine_of, of_container, stopped
from truth import is_ready

FAULTS, fault = table()
RACK = "wisp.test/rack"
SMALL = "wisp-faults-small"
LIMIT = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "default": {"memory": "40Mi"}}]},
}
BAD_IMAGE = "oci://127.0.0.1:1/weights:1"
OF_A_PART = ("event upstream_failed", "event engine_failed")  # of streams whose first part was there


@fault("SIGKILL of the runtime, its container restarts", is_apart=True, errors=OF_A_PART, failure="Killed")
def runtime_is_killed(scene):
    os.kill(of_container(scene.pod()), signal.SIGKILL)
    until(lambda: scene.restarts() == 1 and scene.is_serving(), seconds=60, every=0.05)


@fault("SIGKILL of its engine", is_apart=True, errors=OF_A_PART, failure="EngineDied")
def engine_is_killed(scene):
    os.kill(engine_of(scene.pod()), signal.SIGKILL)
    until(lambda: scene.restarts() == 1 and scene.is_serving(), seconds=60, every=0.05)


@fault("SIGSTOP of the runtime 20 s", is_apart=True, says=[("Ready", "False", "Unready")])
def runtime_hangs(scene):
    with stopped(*below(of_container(scene.pod()))):
        time.sleep(20)


@fault(
    "controllers away 20 s, one of two pods deleted by force", spec=WARM | {"scaling": {"min": 2, "max": 2}}
)
def endpoints_are_stale(scene):
    until(lambda: len([pod for pod in scene.pods() if is_ready(pod)]) == 2, seconds=60)
    before = scene.pods()
    with away("controllers", 20):
        gone = before[0]["metadata"]["name"]
        kubectl("delete", "pod", gone, "-n", scene.namespace, "--grace-period=0", "--force")
    until(lambda: len([pod for pod in scene.pods() if is_ready(pod)]) == 2, seconds=90)


@fault(
    "rollout to an image that cannot be pulled, beside a good pod",
    is_apart=True,
    says=[("Degraded", "True", "PodsFailing")],
    failure="ImagePullFailed",
    event="PodsFailing",
)
def rollout_cannot_be_pulled(scene):
    scene.patch(model={"uri": BAD_IMAGE})
    until(lambda: scene.condition("Degraded")[0] == "True", seconds=60, every=0.05)
    time.sleep(6)  # it stays so, and is served meanwhile
    assert scene.condition("Degraded")[0] == "True"
    assert scene.condition("ArtifactsReady")[0] != "True"
    assert scene.condition("Ready") == ("True", "Serving")
    scene.patch(model=TINY)
    until(lambda: scene.condition("Degraded")[0] == "False", seconds=30)


@fault(
    "rollout to weights that crash, beside a good pod",
    is_apart=True,
    says=[("Degraded", "True", "PodsFailing")],
    failure="WeightsUnreadable",
    event="PodsFailing",
)
def rollout_crashes(scene):
    scene.patch(model={"uri": "pvc://weights/truncated"})
    until(lambda: scene.condition("Degraded")[0] == "True", seconds=60, every=0.05)
    time.sleep(6)
    assert scene.condition("Degraded")[0] == "True"
    assert scene.condition("Ready") == ("True", "Serving")
    scene.patch(model=TINY)
    until(lambda: scene.condition("Degraded")[0] == "False", seconds=30)


@fault(
    "no node has the label, 12 s, then it comes",
    is_apart=True,
    spec=WARM | {"gpu": {"count": 0, "nodeSelector": {RACK: "a"}}},
    is_ready_first=False,
    says=[("Ready", "False", "Unschedulable"), ("Scheduled", "False", "Unschedulable")],
)
def no_node_has_the_label(scene):
    node = get("nodes")[0]["metadata"]["name"]
    time.sleep(12)
    kubectl("label", "node", node, f"{RACK}=a")
    try:
        scene.serves()
    finally:
        kubectl("label", "node", node, f"{RACK}-")


@fault("cordon and drain of the only node", spec=WARM, says=[("Scheduled", "False", "Unschedulable")])
def node_is_drained(scene):
    node, before = get("nodes")[0]["metadata"]["name"], scene.pods()
    ours = (
        "--pod-selector=wisp.dev/model",
        "--pod-selector=app.kubernetes.io/name in (wisp-gateway, wisp-operator)",
    )
    try:
        for pods in ours:  # a budget keeps one gateway and one operator, so the second does not end
            drain = ["drain", node, "--delete-emptydir-data", "--force", "--timeout=8s", pods]
            kubectl(*drain, check=False)
        until(lambda: scene.condition("Scheduled") == ("False", "Unschedulable"), seconds=30)
    finally:
        kubectl("uncordon", node)
    until(lambda: scene.is_replaced(before), seconds=90)


@pytest.mark.parametrize("row", FAULTS, ids=str)
@needs_our_node
def test_no_request_is_lost_and_status_says_what_is(under_load, row):
    under_load(row)


SMALL_FAULTS, small_fault = table()


@small_fault(
    "a memory limit of 40Mi, then none",
    is_ready_first=False,
    rate=10,
    refusals=["503 model_failed"],
    says=[("Ready", "False", "OOMKilled"), ("Degraded", "True", "PodsFailing")],
    failure="OOMKilled",
)
def limit_is_too_low(scene):
    until(lambda: scene.condition("Ready") == ("False", "OOMKilled"), seconds=60)
    kubectl("delete", "limitrange", "small", "-n", scene.namespace)
    scene.serves(seconds=90)


@needs_our_node
def test_a_model_whose_limit_is_raised_answers_again(world, under_load):
    (row,) = SMALL_FAULTS
    world.namespace(SMALL)
    apply(LIMIT, namespace=SMALL)
    under_load(row, namespace=SMALL)


@needs_our_node
@pytest.mark.parametrize("is_made_again", [False, True], ids=["deleted", "deleted and made again"])
def test_a_plain_request_in_flight_is_answered_when_its_model_goes(world, scene, is_made_again):
    """Its pod hangs and is killed: 404 for a model that is gone, else the new pod's answer."""
    scene.apply(**WARM)
    scene.serves()
    pod = scene.pod()
    processes = below(of_container(pod))
    with stopped(*processes):
        asked = [scene.asking(timeout=100) for _ in range(3)]
        time.sleep(1)  # they are in the pod
        scene.forget(scene.name)
        until(lambda: not scene.model(), seconds=30)
        if is_made_again:
            scene.apply(**ASLEEP | {"coldStart": HOLD})
        kubectl(
            "delete", "pod", pod["metadata"]["name"], "-n", scene.namespace, "--grace-period=0", "--force"
        )
        with suppress(ProcessLookupError):
            os.kill(processes[0], signal.SIGKILL)
    for answer in asked:
        code, _, document, took_s = answer.result()
        assert code == (200 if is_made_again else 404), document
        assert took_s < 60
    scene.forget(scene.name)
