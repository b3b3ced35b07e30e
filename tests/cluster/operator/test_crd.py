"""The CRD on a real API server: invalid specs are refused, as kubectl sends them, in full sentences."""

import pytest
from api import refusal
from kube import apply, get, kubectl, model

HF = {"uri": "hf://acme/chat"}
GPU = {"count": 1}
TOLERATION = {"key": "gpu", "value": "x"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"replicas": 1, "scaling": {"max": 2}}, "spec.replicas and spec.scaling exclude each other"),
        ({"scaling": {"min": 3, "max": 2}}, "spec.scaling.min is larger than spec.scaling.max"),
        ({"scaling": {"stableWindow": "5s", "panicWindow": "6s"}}, "panicWindow must be shorter"),
        ({"model": {"uri": "http://x/y"}}, "spec.model.uri must start with hf://"),
        ({"model": {"uri": "hf://qwen3"}}, "names an organisation and a repository"),
        ({"model": {"uri": "s3://b"}}, "names a bucket and a prefix"),
        ({"model": {"uri": "pvc://claim/../other"}}, "'..' is not allowed"),
        ({"model": {"uri": "oci://image"}}, "names an image and its tag or digest"),
        ({"model": {"uri": "file://srv/models"}}, "three slashes"),
        (
            {"model": {"uri": "file:///srv", "revision": "main"}},
            "spec.model.revision only means something with hf://",
        ),
        (
            {"model": {"uri": "file:///srv", "secretRef": {"name": "x"}}},
            "spec.model.secretRef is only read with hf://",
        ),
        ({"model": HF, "cache": {"type": "Image"}}, "the node's image store keeps the weights"),
        (
            {"model": HF, "cache": {"type": "None", "prefetch": True}},
            "needs somewhere to keep what it fetches",
        ),
        ({"cache": {"prefetch": True}}, "has nothing to fetch for a pvc:// or file:// model"),
        ({"coldStart": {"mode": "Reject", "heartbeat": "5s"}}, "heartbeat has no effect with mode Reject"),
        ({"coldStart": {"heartbeat": "10m"}}, "heartbeat must be shorter than spec.coldStart.maxWait"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "cannot both be 0"),
        ({"gpu": {"count": 2}}, "needs tensor parallelism"),
        ({"gpu": {"count": 0, "memory": "16Gi"}}, "spec.gpu.count 0 means the CPU"),
        (
            {"gpu": GPU | {"nodeSelector": {"nvidia.com/gpu.product": "L4"}}},
            "list the products in spec.gpu.product",
        ),
        (
            {"gpu": GPU | {"tolerations": [TOLERATION | {"operator": "Exists"}]}},
            "operator Exists takes no value",
        ),
        (
            {"gpu": GPU | {"tolerations": [TOLERATION | {"tolerationSeconds": 5}]}},
            "only means something with effect NoExecute",
        ),
        ({"runtime": {"quantization": "fp8"}}, "must be auto or bf16 on the CPU"),
        ({"runtime": {"kvCacheBf16Layers": 1}}, "keeps layers out of a smaller format"),
        ({"runtime": {"env": [{"name": "WISP_PORT", "value": "1"}]}}, "must not set WISP_* variables"),
        ({"runtime": {"env": [{"name": "A"}]}}, "either a value or a secretRef"),
        ({"runtime": {"maxContext": 0}}, "spec.runtime.maxContext"),
        ({"runtime": {"maxContext": "much"}}, "spec.runtime.maxContext"),
        ({"scaling": {"idleAfter": "soon"}}, "spec.scaling.idleAfter"),
        ({"routing": {"policy": "Random"}}, "Unsupported value"),
        ({"maxTokens": 1}, 'unknown field "spec.maxTokens"'),
    ],
)
def test_a_spec_that_cannot_be_is_refused_with_its_sentence(shared_namespace, spec, says):
    assert says in refusal("inferencemodel", model("chat", **spec), shared_namespace)


@pytest.mark.parametrize("name", ["1chat", "chat.v1", "a" * 64])
def test_a_name_that_no_service_can_have_is_refused(shared_namespace, name):
    refused = apply(model(name), namespace=shared_namespace, check=False)
    assert "metadata.name is also the name of a Service" in " ".join(refused.stderr.split())


def test_short_name_categories_and_scale_work(namespace):
    apply(model("chat", replicas=1), namespace=namespace)
    assert "chat" in kubectl("get", "imodel", "-n", namespace)
    assert "inferencemodel.wisp.dev/chat" in kubectl("get", "inference", "-n", namespace, "-o", "name")
    kubectl("scale", "imodel", "chat", "-n", namespace, "--replicas=3")
    assert get("imodel", "chat", namespace)["spec"]["replicas"] == 3


def test_kubectl_scale_on_an_autoscaled_model_says_what_to_do(namespace):
    apply(model("chat", scaling={"max": 2}), namespace=namespace)
    refused = kubectl("scale", "imodel", "chat", "-n", namespace, "--replicas=3", check=False)
    assert "remove spec.scaling" in refused.stderr
