"""The release upgraded to something that cannot run, to other values, and away, under load."""

import time

import pytest
from fault_table import needs_our_node, table
from kube import get, kubectl, until
from release import NAME, SYSTEM, helm, install, settled

FAULTS, fault = table()


@fault(
    "helm upgrade to a runtime image that does not exist, then rollback",
    says=[("Degraded", "True", "PodsFailing")],
    failure="ImagePullFailed",
    event="PodsFailing",
)
def runtime_image_is_missing(scene):
    before = scene.pods()
    install("--set", "images.runtime.tag=none")
    until(lambda: scene.condition("Degraded")[0] == "True", seconds=60, every=0.05)
    time.sleep(6)
    assert scene.condition("Degraded")[0] == "True"
    assert scene.condition("Ready") == ("True", "Serving")
    helm("rollback", NAME, "--namespace", SYSTEM, "--wait", "--timeout", "120s")
    settled("operator")
    until(lambda: scene.condition("Degraded")[0] == "False", seconds=60)
    assert {pod["metadata"]["uid"] for pod in scene.pods()} == {pod["metadata"]["uid"] for pod in before}


@fault("helm upgrade to three gateways, another lease and memory, then rollback")
def values_change(scene):
    values = ("gateway.replicas=3", "operator.leaseSeconds=10", "gateway.resources.limits.memory=400Mi")
    install(*(part for value in values for part in ("--set", value)))
    helm("rollback", NAME, "--namespace", SYSTEM, "--wait", "--timeout", "120s")
    for component in ("gateway", "operator"):
        settled(component)


@pytest.mark.parametrize("row", FAULTS, ids=str)
@needs_our_node
def test_no_request_is_lost_by_an_upgrade(under_load, row):
    under_load(row)


@needs_our_node
def test_a_model_outlives_its_release_and_the_next_one_takes_its_pod(world, scene):
    scene.apply(scaling={"min": 1, "max": 1})
    scene.serves()
    before = scene.pod()
    helm("uninstall", NAME, "--namespace", SYSTEM, "--wait")
    install()
    world.url = scene.url = f"http://{get('service', 'wisp-gateway', SYSTEM)['spec']['clusterIP']}"
    until(lambda: scene.ask()[0] == 200, seconds=30)
    assert [pod["metadata"]["uid"] for pod in scene.pods()] == [before["metadata"]["uid"]]
    assert scene.restarts() == 0
    kubectl("get", "imodel", scene.name, "-n", scene.namespace)
