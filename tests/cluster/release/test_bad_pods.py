"""Bad models on an installed release end as a named reason; more reasons: ../operator/test_failures.py."""

import json
import time

import pytest
import yaml
from kube import apply, condition, get, kubectl, model, status, until
from namespaces import make_namespace, put_weights, run_pod
from release import CLIENTS, ask, chat, client_pod
from tiny import write_tiny

NAMESPACE = "wisp-bad"
GIB = 2**30
SECRET = {"name": "absent"}
BAD = {
    "secret": {"model": {"uri": "hf://acme/small", "secretRef": SECRET}, "cache": {"type": "None"}},
    "repository": {"model": {"uri": "hf://acme/none"}, "cache": {"type": "None"}},
    "hub": {
        "model": {"uri": "hf://acme/small"},
        "cache": {"type": "None"},
        "runtime": {"env": [{"name": "HF_ENDPOINT", "value": "http://127.0.0.1:1"}]},
    },
    "folder": {"model": {"uri": "pvc://weights/none"}},
    "truncated": {"model": {"uri": "pvc://weights/truncated"}},
    "directory": {"model": {"uri": "file:///srv/tiny"}},
}


@pytest.fixture(scope="module")
def hub(clients):
    """A hub inside the cluster, the one of the release's operator."""
    pod = client_pod("hub", ["python3", "/scripts/hub.py"], labels={"app": "hub"}, port=8000)
    spec = {"selector": {"app": "hub"}, "ports": [{"port": 80, "targetPort": 8000}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": spec}
    kubectl("apply", "-n", CLIENTS, "-f", "-", stdin=yaml.safe_dump(service))
    run_pod(CLIENTS, pod)
    yield
    kubectl("delete", "pod/hub", "service/hub", "-n", CLIENTS)


@pytest.fixture
def small_gpus():
    """The first node, made to look like one with eight GPUs of 15 GB; labels outrank the catalogue."""
    node = get("nodes")[0]["metadata"]["name"]
    labels = {"product": "NVIDIA-A10", "memory": "15360", "count": "8"}
    kubectl(
        "label",
        "node",
        node,
        "--overwrite",
        *(f"nvidia.com/gpu.{key}={value}" for key, value in labels.items()),
    )
    set_gpus(node, "8")
    yield
    kubectl("label", "node", node, *(f"nvidia.com/gpu.{key}-" for key in labels))
    set_gpus(node, None)


def set_gpus(node, count):
    """Say how many GPUs a node has; None: none, though the kubelet may have taken one away already."""
    counts = {"nvidia.com/gpu": count}
    patch = {"status": {"capacity": counts, "allocatable": counts}}
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


def test_a_model_that_cannot_fit_says_so_with_numbers_and_gets_no_pod(hub, small_gpus):
    """Before the bad models, whose pods start again and again."""
    namespace = make_namespace("wisp-large")
    gpu = {"model": {"uri": "hf://acme/large"}, "gpu": {"count": 1}, "replicas": 1, "cache": {"type": "None"}}
    apply(model("large", **gpu), namespace=namespace)
    until(lambda: condition("large", "Ready", namespace) == ("False", "DoesNotFit"))
    fit = status("large", namespace)["fit"]
    assert fit["weightsBytes"] > 14 * GIB
    assert fit["headroomBytes"] < 0
    assert fit["gpu"] == "A10"
    time.sleep(2)  # a pod would be here by now
    assert get("pods", namespace=namespace) == []
    [replicaset] = until(lambda: get("replicasets", namespace=namespace))
    assert replicaset["spec"]["replicas"] == 0
    print(kubectl("get", "imodel", "-n", namespace, "-o", "wide"))
    kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def bad_models(hub, tmp_path_factory):
    """All of them at once, each with replicas."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "tiny")
    write_tiny(folder / "truncated")
    weights = folder / "truncated/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    make_namespace(NAMESPACE)
    put_weights(NAMESPACE, tiny=folder / "tiny", truncated=folder / "truncated")
    tiny = {"model": {"uri": "pvc://weights/tiny"}}
    apply(*(model(name, **tiny | spec, replicas=1) for name, spec in BAD.items()), namespace=NAMESPACE)
    yield
    kubectl("delete", "imodel", "--all", "-n", NAMESPACE)


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("secret", "SecretMissing", "Secret absent does not exist in namespace wisp-bad"),
        ("repository", "ModelNotFound", "acme/none"),
        ("hub", "SourceUnreachable", "127.0.0.1:1"),
        ("folder", "ModelNotFound", "Claim weights has no folder none"),
        ("truncated", "WeightsUnreadable", "model.safetensors"),
        ("directory", "PodRefused", "violates PodSecurity"),
    ],
)
def test_what_is_wrong_has_a_name_and_a_sentence(bad_models, name, reason, says):
    def named():  # read once: a pod that starts again is Waking for a moment
        conditions = status(name, NAMESPACE).get("conditions", [])
        return next((c["message"] for c in conditions if (c["type"], c["reason"]) == ("Ready", reason)), "")

    said = until(named, every=0.5)
    assert says in said
    print(f"{name}: {reason}: {said}")


def test_a_request_for_a_model_that_failed_gets_the_reason_at_once(bad_models):
    until(lambda: status("truncated", NAMESPACE).get("state") == "Failed")

    def refusal():  # read once: the next may meet a pod that starts again, or the other gateway
        code, headers, lines = ask("/v1/chat/completions", chat("truncated"))
        error = json.loads(lines[0][1]).get("error", {})
        is_at_once = lines[0][0] < 5
        return is_at_once and (code, error.get("code")) == (503, "model_failed") and (headers, error)

    headers, error = until(refusal)
    assert "WeightsUnreadable" in error["message"]
    assert 1 <= int(headers["retry-after"]) <= 60
