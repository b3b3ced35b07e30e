"""Kinds that a cluster may or may not have: made where their CRDs are, and where the model asks."""

import pytest
from kube import apply, get, is_established, kubectl, model, status, until

GROUPS = {
    "podmonitors.monitoring.coreos.com": ("PodMonitor", "v1"),
    "inferencepools.inference.networking.k8s.io": ("InferencePool", "v1"),
}


def crd(name, kind, version):
    """A CRD with the right names that takes any content."""
    plural, _, group = name.partition(".")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Groups of *.k8s.io ask for a word on whether they were approved.
        "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture
def optional_crds():
    apply(*(crd(name, *kind) for name, kind in GROUPS.items()))
    until(lambda: all(map(is_established, GROUPS)))
    yield
    kubectl("delete", "crd", *GROUPS, "--timeout=120s")


def test_a_pod_monitor_always_and_an_inference_pool_when_asked(optional_crds, start_operator, namespace):
    until(start_operator().leads)  # it looks for these kinds as it starts
    asking = model("chat")
    asking["metadata"]["annotations"] = {"wisp.dev/endpoint-picker": "epp:9002"}
    apply(asking, model("plain"), namespace=namespace)
    until(lambda: status("plain", namespace).get("state") == "Asleep")
    until(lambda: len(get("podmonitors", namespace=namespace)) == 2)
    pool = until(lambda: get("inferencepools", namespace=namespace))
    assert [(found["metadata"]["name"], found["spec"]["endpointPickerRef"]["name"]) for found in pool] == [
        ("chat", "epp")
    ]
    kubectl("annotate", "imodel", "chat", "-n", namespace, "wisp.dev/endpoint-picker-")
    until(lambda: get("inferencepools", namespace=namespace) == [])
