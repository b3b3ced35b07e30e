"""The caches' share of an object: what is read, and nothing that a tenant can make large."""

import json

import pytest

from wisp_operator.cluster.observation.trimming import trimmed

LARGE = "x" * (1 << 20)
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "chat-1", "uid": "u", "controller": True}]}


def document(kind, metadata=None, **fields):
    identity = {"name": "chat", "namespace": "a", "uid": "u", "resourceVersion": "1"}
    return {"apiVersion": "v1", "kind": kind, "metadata": {**identity, **(metadata or {})}, **fields}


def test_of_a_node_labels_and_allocatable_are_kept():
    node = document("Node", {"labels": {"gpu": "L4"}}, spec={"podCIDR": "10.0.0.0/24"})
    node["status"] = {"allocatable": {"nvidia.com/gpu": "8"}, "images": ["many"]}
    kept = trimmed(node)
    assert (kept["metadata"]["labels"], kept["status"]) == (
        {"gpu": "L4"},
        {"allocatable": {"nvidia.com/gpu": "8"}},
    )
    assert "spec" not in kept


def owned(kind, container=None, **fields):
    """An object whose controller is a model, as anybody may say of theirs."""
    owner = {"kind": "InferenceModel", "name": "chat", "uid": "u", "controller": True}
    pod = {"containers": [container or {"name": "runtime"}]}
    return document(kind, {"ownerReferences": [owner]}, spec={"template": {"spec": pod}}, **fields)


@pytest.mark.parametrize(
    ("found", "is_kept"),
    [
        (owned("Deployment"), True),
        (owned("Deployment", {"env": [{"name": f"E{n}", "value": "x" * 4096} for n in range(64)]}), True),
        (owned("Deployment", {"env": [{"name": f"E{n}"} for n in range(50_000)]}), False),
        (owned("Deployment", status={"x": [[[]]] * 20_000}), False),
        (owned("Job", {"args": ["x"] * 50_000}), False),
    ],
)
def test_of_an_object_with_more_values_than_a_child_has_the_identity_is_kept(found, is_kept):
    kept = trimmed(found)
    assert ("spec" in kept) == is_kept
    assert kept["metadata"]["ownerReferences"] == found["metadata"]["ownerReferences"]


def test_annotations_and_labels_of_ours_are_kept():
    metadata = {
        "managedFields": [1],
        "annotations": {"kubectl.kubernetes.io/x": "long", "own": "y", "wisp.dev/desired": "7"},
        "labels": {"wisp.dev/model": "chat", "more": "z", "pod-template-hash": "1"},
    }
    kept = trimmed(document("Pod", metadata))["metadata"]
    assert kept["annotations"] == {"wisp.dev/desired": "7"}
    assert kept["labels"] == {"wisp.dev/model": "chat", "pod-template-hash": "1"}
    assert "managedFields" not in kept


@pytest.mark.parametrize(
    "hostile",
    [
        document("Pod", {"annotations": {"a": LARGE}}),
        document("Pod", OWNED, spec={"containers": [{"env": [{"name": "A", "value": LARGE}]}]}),
        document("Pod", OWNED, spec={"containers": [{"image": "i"}, {"args": [LARGE]}]}),
        document("Pod", OWNED, spec={"containers": [], "volumes": [{"name": "v", "csi": {"x": LARGE}}]}),
        document("Deployment", spec={"template": {"spec": {"containers": [{"args": [LARGE]}]}}}),
        document("Service", {"managedFields": [LARGE]}, spec={"selector": {"a": LARGE}}),
        document("Job", spec={"x": LARGE}, status={"y": LARGE}),
    ],
)
def test_a_tenants_large_object_costs_little(hostile):
    assert len(json.dumps(trimmed(hostile))) < 1000


def test_what_names_a_pods_failure_is_kept():
    spec = {
        "nodeName": "n",
        "containers": [{"image": "i", "resources": {}, "startupProbe": {}, "volumeMounts": [{}], "env": [1]}],
        "volumes": [
            {"name": "c", "persistentVolumeClaim": {"claimName": "x"}},
            {"name": "e", "emptyDir": {}},
        ],
    }
    kept = trimmed(document("Pod", OWNED, spec=spec, status={"phase": "Running"}))
    assert kept["status"] == {"phase": "Running"}
    assert kept["spec"]["containers"] == [
        {"image": "i", "resources": {}, "startupProbe": {}, "volumeMounts": [{}]}
    ]
    assert kept["spec"]["volumes"] == spec["volumes"][:1]
