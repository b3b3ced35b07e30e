"""Limits of an installation on InferenceModels, as a table."""

import pytest

from wisp_operator import api
from wisp_operator.core.access.policy import Policy


def model(uri="hf://org/name", *names, secret="", **more):
    env = [{"name": name, "value": "x"} for name in names]
    env += [{"name": secret, "secretRef": {"name": "database", "key": "password"}}] if secret else []
    spec = {"model": {"uri": uri}, "runtime": {"env": env}, **more}
    metadata = {"name": "chat", "namespace": "team"}
    return api.parse({"apiVersion": api.API_VERSION, "kind": api.KIND, "metadata": metadata, "spec": spec})


DEFAULT = Policy()
SRV = Policy(file_directories=("/srv/models/",))


@pytest.mark.parametrize(
    ("policy", "found", "says"),
    [
        (DEFAULT, model(), ""),
        (DEFAULT, model("s3://bucket/x", "AWS_REGION", "AWS_SKIP_SIGNATURE"), ""),
        (DEFAULT, model("hf://a/b", "HTTPS_PROXY", "no_proxy", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"), ""),
        (DEFAULT, model("pvc://claim/x"), ""),
        (DEFAULT, model("oci://ghcr.io/a/b:1"), ""),
        (Policy(allows_oci=False), model("oci://ghcr.io/a/b:1"), "policy.ociModels"),
        # Directories of nodes: none, unless listed.
        (DEFAULT, model("file:///srv/models/x"), "nowhere in this cluster"),
        (SRV, model("file:///srv/models/x"), ""),
        (SRV, model("file:///srv/models"), ""),
        (SRV, model("file:///srv/models/./x//y/"), ""),
        (SRV, model("file:///srv/models-2/x"), "below /srv/models/ of a node"),
        (SRV, model("file:///var/lib/kubelet/pods"), "below /srv/models/"),
        (SRV, model("file:///."), "below /srv/models/"),
        (Policy(file_directories=("/",)), model("file:///."), ""),
        # Variables that change the code, the destination of a token, or where files are read.
        (DEFAULT, model("hf://a/b", "HF_ENDPOINT"), "HF_ENDPOINT may change"),
        (DEFAULT, model("hf://a/b", "HF_TOKEN"), "HF_TOKEN may change"),
        (DEFAULT, model("hf://a/b", "HF_HUB_CACHE"), "HF_HUB_CACHE may change"),
        (DEFAULT, model("s3://bucket/x", "AWS_ENDPOINT_URL"), "AWS_ENDPOINT_URL may change"),
        (DEFAULT, model("s3://bucket/x", "AWS_ENDPOINT_URL_S3"), "AWS_ENDPOINT_URL_S3 may change"),
        (DEFAULT, model("oci://ghcr.io/a/b:1", "PYTHONPATH"), "PYTHONPATH may change"),
        (DEFAULT, model("oci://ghcr.io/a/b:1", "LD_PRELOAD"), "LD_PRELOAD may change"),
        (DEFAULT, model("hf://a/b", "SSL_CERT_FILE", "HOME"), "SSL_CERT_FILE, HOME may change"),
        (DEFAULT, model("hf://a/b", "Https_Proxy"), "Https_Proxy may change"),
        (DEFAULT, model("hf://a/b", *(f"A{n}" for n in range(60))), "A3 and 56 more may change"),
        (Policy(environment=("FAKE_*", "")), model("hf://a/b", "FAKE_X"), ""),
        (Policy(environment=("FAKE_*", "")), model("hf://a/b", "FAK"), "FAK may change"),
        # Any key of any Secret, which a proxy's name or an error message would show.
        (DEFAULT, model("hf://a/b", secret="HTTPS_PROXY"), "would take any key of any Secret"),
        (Policy(allows_env_secrets=True), model("hf://a/b", secret="HTTPS_PROXY"), ""),
        (Policy(allows_env_secrets=True), model("hf://a/b", secret="HF_TOKEN"), "HF_TOKEN may change"),
    ],
)
def test_an_installation_refuses_what_it_has_not_opened_and_names_the_remedy(policy, found, says):
    refusal = policy.refusal(found)
    assert bool(refusal) == bool(says)
    assert says in refusal
    assert not refusal or "of Wisp's chart" in refusal


def test_every_limit_is_named_at_once():
    refusal = DEFAULT.refusal(model("file:///etc", "PYTHONPATH", secret="HTTPS_PROXY"))
    assert [word in refusal for word in ("fileDirectories", "policy.env ", "envSecretRefs")] == [True] * 3


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ({"labels": {"app": "checkout"}}, "policy.podLabels"),  # another Service's pod
        ({"annotations": {"iam.amazonaws.com/role": "admin"}}, "policy.podAnnotations"),
        ({"annotations": {"k8s.v1.cni.cncf.io/networks": "storage"}}, "policy.podAnnotations"),
        ({"priorityClassName": "system-node-critical"}, "policy.priorityClasses"),
        ({"labels": {"team": "a"}, "annotations": {"prometheus.io/port": "8000"}}, ""),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, ""),
    ],
)
def test_a_pod_template_gives_nothing_that_was_not_opened(template, value):
    refusal = Policy().refusal(model(podTemplate=template))
    assert value in refusal
    assert bool(refusal) == bool(value)


def test_metadata_and_priorities_are_opened_by_key_or_by_prefix():
    template = {"labels": {"acme.io/a": ""}, "annotations": {"b": ""}, "priorityClassName": "gold"}
    policy = Policy(pod_labels=("acme.io/*",), pod_annotations=("b",), priority_classes=("gold",))
    assert policy.refusal(model(podTemplate=template)) == ""
