"""Fit checks before any pod exists: node labels, a hub's headers, numbers in status."""

import json

import pytest
from hub import LLAMA_8B, TINY, hub
from kube import apply, condition, get, kubectl, message, model, status, until

GIB = 2**30


def gpu_node(product, mib, count):
    """Make the test node look like one that NVIDIA's GPU feature discovery has labelled."""
    labels = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.count": str(count),
    }
    kubectl("label", "node", "--all", "--overwrite", *(f"{key}={value}" for key, value in labels.items()))
    for part in ("capacity", "allocatable"):
        patch = [{"op": "add", "path": f"/status/{part}/nvidia.com~1gpu", "value": str(count)}]
        kubectl("patch", "node", "node1", "--subresource=status", "--type=json", "-p", json.dumps(patch))


@pytest.fixture
def small_gpus():
    """One node with eight GPUs of 15 GB; its labels outrank the catalogue."""
    gpu_node("NVIDIA-A10", 15360, 8)
    yield
    labels = [f"nvidia.com/gpu.{name}-" for name in ("product", "memory", "count")]
    kubectl("label", "node", "--all", *labels)
    gone = {"nvidia.com/gpu": None}  # the kubelet may have taken one of both away already
    patch = {"status": {"capacity": gone, "allocatable": gone}}
    kubectl("patch", "node", "node1", "--subresource=status", "--type=merge", "-p", json.dumps(patch))


@pytest.fixture(scope="module")
def endpoint():
    with hub(large=LLAMA_8B, small=TINY) as address:
        yield address


@pytest.fixture
def repositories(kept_operator, endpoint):
    """An operator that asks the hub."""
    return kept_operator("--hub-endpoint", endpoint)


def test_a_model_that_cannot_fit_says_so_with_numbers_and_gets_no_pod(repositories, small_gpus, namespace):
    apply(model("large", model={"uri": "hf://acme/large"}, gpu={"count": 1}, replicas=1), namespace=namespace)
    until(lambda: condition("large", "Fits", namespace) == ("False", "DoesNotFit"))
    fit = status("large", namespace)["fit"]
    assert fit["verdict"] == "DoesNotFit"
    assert fit["weightsBytes"] > 14 * GIB
    assert fit["headroomBytes"] < 0
    assert fit["gpu"] == "A10"
    assert condition("large", "Ready", namespace) == ("False", "DoesNotFit")
    assert get("pods", namespace=namespace) == []
    assert get("deployment", "large", namespace)["spec"]["replicas"] == 0
    print(message("large", "Fits", namespace))


def test_a_model_that_fits_has_its_context_resolved(repositories, small_gpus, namespace):
    apply(model("small", model={"uri": "hf://acme/small"}, gpu={"count": 1}), namespace=namespace)
    until(lambda: condition("small", "Fits", namespace) == ("True", "Fits"))
    fit = status("small", namespace)["fit"]
    assert fit["maxContext"] == 8192
    assert fit["maxConcurrentAtContext"] >= 1
    assert fit["basis"] == "computed from the weights headers"
    print(message("small", "Fits", namespace))


def test_without_any_gpu_the_spec_itself_is_asked(repositories, namespace):
    gpu = {"count": 1, "product": ["NVIDIA-L4"]}
    apply(model("large", model={"uri": "hf://acme/large"}, gpu=gpu), namespace=namespace)
    until(lambda: status("large", namespace).get("fit", {}).get("gpu") == "L4")
    apply(model("any", model={"uri": "hf://acme/large"}, gpu={"count": 1}), namespace=namespace)
    until(lambda: condition("any", "Fits", namespace) == ("Unknown", "FitUnknown"))


def test_a_node_that_comes_later_answers_the_question(repositories, namespace, request):
    apply(model("large", model={"uri": "hf://acme/large"}, gpu={"count": 1}), namespace=namespace)
    until(lambda: condition("large", "Fits", namespace) == ("Unknown", "FitUnknown"))
    request.getfixturevalue("small_gpus")
    until(lambda: condition("large", "Fits", namespace) == ("False", "DoesNotFit"))


def test_more_gpus_than_there_are_is_unschedulable_not_a_hang(repositories, small_gpus, namespace):
    apply(model("small", model={"uri": "hf://acme/small"}, gpu={"count": 1}, replicas=9), namespace=namespace)
    until(lambda: condition("small", "Scheduled", namespace) == ("False", "Unschedulable"))
    assert "Insufficient nvidia.com/gpu" in message("small", "Scheduled", namespace)
    assert status("small", namespace)["readyReplicas"] in range(9)


def test_a_private_or_absent_repository_is_unknown_with_the_reason(repositories, small_gpus, namespace):
    apply(model("none", model={"uri": "hf://acme/none"}, gpu={"count": 1}), namespace=namespace)
    until(lambda: "config.json" in message("none", "Fits", namespace))  # "is being checked" before
    assert condition("none", "Fits", namespace) == ("Unknown", "FitUnknown")
