"""The operator against a real API server: children, status, columns, deletion."""

import json
import time

import pytest
from kube import (
    apply,
    at_rest,
    condition,
    fake,
    get,
    has_state,
    kubectl,
    model,
    moments,
    status,
    until,
)

CONDITIONS = {
    *("Accepted", "Fits", "ArtifactsReady", "Scheduled"),
    *("Ready", "Active", "Progressing", "Degraded", "Named"),
}


def test_an_applied_model_gets_its_children_its_status_and_its_columns(operator, namespace):
    apply(model("chat"), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    owner = get("inferencemodel", "chat", namespace)["metadata"]
    for kind in ("deployment", "service", "networkpolicy"):
        child = get(kind, "chat", namespace)["metadata"]
        assert child["ownerReferences"][0]["uid"] == owner["uid"], kind
    assert get("deployment", "chat", namespace)["spec"]["replicas"] == 0
    found = status("chat", namespace)
    assert {c["type"] for c in found["conditions"]} == CONDITIONS
    assert all(c["observedGeneration"] == owner["generation"] for c in found["conditions"])
    assert "finalizers" not in owner
    assert [key for key in owner.get("annotations", {}) if "kubectl" not in key] == []
    table = kubectl("get", "imodel", "-n", namespace).splitlines()
    assert table[0].split() == ["NAME", "READY", "REPLICAS", "STATE", "REASON", "FIT", "COLD", "AGE"]
    assert table[1].split()[:6] == ["chat", "True", "0/0", "Asleep", "ScaledToZero", "Unknown"]
    print(kubectl("get", "imodel", "-n", namespace, "-o", "wide"))


def test_demand_wakes_a_model_and_its_start_is_reported_phase_by_phase(operator, namespace):
    apply(model("chat", runtime=fake(ready_after="2s")), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    assert operator.ask(f"{namespace}/chat") == 204
    with moments("inferencemodels", namespace) as seen:
        until(
            lambda: operator.ask(f"{namespace}/chat") and status("chat", namespace)["state"] == "Ready",
            every=1,
        )
    assert any(map(has_state("Waking"), seen))
    phases = until(lambda: status("chat", namespace)["coldStart"].get("phases"))
    assert set(phases) == {"schedule", "pull", "import", "weights", "kernels", "firstToken"}
    assert status("chat", namespace)["coldStart"]["lastSeconds"] >= 2
    until(lambda: status("chat", namespace)["fit"]["basis"] == "measured by a pod")
    assert condition("chat", "Fits", namespace) == ("True", "Fits")
    print(json.dumps(status("chat", namespace)["coldStart"]))


def test_an_idle_model_goes_back_to_zero_and_keeps_what_its_start_took(operator, namespace):
    apply(model("chat", scaling={"idleAfter": "3s"}), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    with moments("inferencemodels", namespace) as seen:
        assert operator.ask(f"{namespace}/chat") == 204
        until(lambda: any(map(has_state("Ready"), seen)))
    until(lambda: status("chat", namespace)["state"] == "Asleep")
    until(lambda: not get("pods", namespace=namespace))
    until(lambda: status("chat", namespace)["replicas"] == 0)
    assert "weights" in status("chat", namespace)["coldStart"]["phases"]
    reasons = {"Waking", "Serving", "ScaledToZero"}
    until(lambda: reasons <= {event["reason"] for event in get("events", namespace=namespace)})


def test_a_cluster_at_rest_is_left_alone(operator, namespace):
    # Names of their own: who has a bare name changes while another test's namespace goes.
    names = [f"resting-{i}" for i in range(3)]
    apply(*map(model, names), namespace=namespace)
    until(lambda: all(status(name, namespace).get("state") == "Asleep" for name in names))
    kubectl("annotate", "imodel", names[0], "-n", namespace, "note=seen")  # an event that means nothing
    before = at_rest(lambda: versions(namespace))
    for change in ("note=seen", "note-"):
        done = reconciles(operator)
        kubectl("label", "nodes", "--all", change, "--overwrite")  # every model is reconciled again
        until(lambda done=done: reconciles(operator) >= done + len(names))
        time.sleep(1)
    assert versions(namespace) == before


def reconciles(operator):
    return sum(n for name, n in operator.metrics().items() if "reconciles_total" in name)


def versions(namespace):
    """Resource version of everything that the operator writes."""
    kinds = ("imodel", "deployment", "service", "networkpolicy", "events")
    found = [(kind, child["metadata"]) for kind in kinds for child in get(kind, namespace=namespace)]
    return {(kind, metadata["name"]): metadata["resourceVersion"] for kind, metadata in found}


@pytest.mark.parametrize("kind", ["deployment", "service", "networkpolicy"])
def test_a_child_that_somebody_changed_or_deleted_comes_back(operator, namespace, kind):
    apply(model("chat"), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    uid = get(kind, "chat", namespace)["metadata"]["uid"]
    kubectl("delete", kind, "chat", "-n", namespace)
    until(
        lambda: any(
            child["metadata"]["uid"] != uid and child["metadata"]["name"] == "chat"
            for child in get(kind, namespace=namespace)
        )
    )


def test_replicas_set_on_the_deployment_by_hand_are_taken_back(operator, namespace):
    # Where the pods are quicker than the operator they count as running, and go when they are idle.
    apply(model("chat", scaling={"idleAfter": "2s"}), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    kubectl("scale", "deployment", "chat", "-n", namespace, "--replicas=3")
    until(lambda: get("deployment", "chat", namespace)["spec"]["replicas"] == 0)


def test_kubectl_scale_sets_the_number_by_hand_and_pods_beyond_one_get_a_budget(operator, namespace):
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: status("chat", namespace).get("readyReplicas") == 1)
    assert get("pdb", namespace=namespace) == []
    kubectl("scale", "imodel", "chat", "-n", namespace, "--replicas=2")
    until(lambda: status("chat", namespace).get("readyReplicas") == 2)
    until(lambda: len(get("pdb", namespace=namespace)) == 1)
    scale = json.loads(
        kubectl("get", "--raw", f"/apis/wisp.dev/v1alpha1/namespaces/{namespace}/inferencemodels/chat/scale")
    )
    assert scale["status"]["replicas"] == 2
    assert scale["status"]["selector"] == "wisp.dev/model=chat"
    kubectl("scale", "imodel", "chat", "-n", namespace, "--replicas=1")
    until(lambda: status("chat", namespace).get("replicas") == 1)
    until(lambda: get("pdb", namespace=namespace) == [])


def test_a_model_deleted_while_the_operator_is_down_leaves_nothing(operator, namespace):
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: status("chat", namespace).get("readyReplicas") == 1)
    assert operator.stop() == 0
    kubectl("delete", "imodel", "chat", "-n", namespace, "--timeout=20s")
    for kind in ("deployment", "service", "networkpolicy", "pods", "replicasets"):
        until(lambda kind=kind: get(kind, namespace=namespace) == [])


def test_suspended_and_invalid_models_say_so(operator, namespace):
    apply(model("chat", suspend=True), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Suspended")
    assert condition("chat", "Ready", namespace) == ("False", "Suspended")
