"""Rights that a tenant, a stranger's pod or a stolen account do not have, against a real API server."""

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from api_server import ROOT, TOKEN, binary_folder, model, until

COST = "controller.kubernetes.io/pod-deletion-cost"
SPACE = "wisp-system"
LABELLED = {"metadata": {"labels": {"x": "y"}}}


@pytest.fixture(scope="module")
def account(server):
    """The operator's account with the chart's rights and admission policy, as kubectl impersonates it."""
    helm = binary_folder() / "helm"
    if not Path(helm).exists():
        pytest.skip(f"{helm} is missing; `make cluster` builds it")
    shown = [
        *("operator-serviceaccount", "operator-clusterrole", "operator-clusterrolebinding"),
        *("operator-validatingadmissionpolicy", "operator-validatingadmissionpolicybinding"),
    ]
    command = [str(helm), "template", "wisp", str(ROOT / "charts/wisp"), "--namespace", SPACE]
    command += ["--kube-version", "1.34", "--set", "operator.markIdlePods=true"]
    command += [part for name in shown for part in ("--show-only", f"templates/{name}.yaml")]
    manifests = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    server.kubectl("create", "namespace", SPACE)
    server.kubectl("apply", "-f", "-", stdin=manifests)
    name = f"system:serviceaccount:{SPACE}:wisp-operator"
    server.kubectl("create", "namespace", "probe-rights")
    make_pod(server, "probe-rights", "probe", {"wisp.dev/model": "m"})
    until(lambda: "nothing of a pod" in patched(server, name, "probe-rights", "probe", LABELLED))
    return name


def make_pod(server, namespace, name, labels):
    container = {"name": "runtime", "image": "registry/wisp-runtime:1"}
    server.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "annotations": {"kept": "1"}},
            "spec": {"containers": [container], "automountServiceAccountToken": False},
        },
        namespace=namespace,
    )


def patched(server, account, namespace, name, patch):
    """Patch a pod as ``account``; the refusal, empty if it was taken."""
    headers = {"authorization": f"Bearer {TOKEN}", "impersonate-user": account}
    headers["content-type"] = "application/strategic-merge-patch+json"
    url = f"{server.url}/api/v1/namespaces/{namespace}/pods/{name}"
    request = urllib.request.Request(url, json.dumps(patch).encode(), headers, method="PATCH")
    try:
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()):
            return ""
    except urllib.error.HTTPError as error:
        return json.load(error)["message"]


@pytest.mark.parametrize(
    ("labels", "patch", "refusal"),
    [
        ({"wisp.dev/model": "m"}, {"metadata": {"annotations": {COST: "-5"}}}, ""),
        ({"app": "redis"}, {"metadata": {"annotations": {COST: "-5"}}}, "pods of models alone"),
        ({"wisp.dev/model": "m"}, {"metadata": {"annotations": {"other": "1"}}}, "but its deletion cost"),
        ({"wisp.dev/model": "m"}, {"metadata": {"annotations": {"kept": None}}}, "but its deletion cost"),
        ({"wisp.dev/model": "m"}, {"metadata": {"annotations": {"kept": "2"}}}, "but its deletion cost"),
        ({"wisp.dev/model": "m"}, {"metadata": {"labels": {"app": "x"}}}, "nothing of a pod but"),
        ({"wisp.dev/model": "m"}, {"metadata": {"finalizers": ["a.b/c"]}}, "nothing of a pod but"),
        (
            {"wisp.dev/model": "m"},
            {"spec": {"containers": [{"name": "runtime", "image": "evil"}]}},
            "nothing of a pod but",
        ),
    ],
)
def test_a_stolen_account_of_the_operator_changes_no_pod(server, namespace, account, labels, patch, refusal):
    make_pod(server, namespace, "victim", labels)
    said = patched(server, account, namespace, "victim", patch)
    assert (refusal in said) if refusal else said == ""
    image = server.get("pod", "victim", namespace)["spec"]["containers"][0]["image"]
    assert image == "registry/wisp-runtime:1"


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"model": {"uri": "file:///var/lib/kubelet/pods"}}, "policy.fileDirectories"),
        (
            {
                "model": {"uri": "oci://evil.example/code:1"},
                "runtime": {"env": [{"name": "PYTHONPATH", "value": "/models/thief"}]},
            },
            "policy.env ",
        ),
        (
            {
                "model": {"uri": "hf://acme/m"},
                "runtime": {
                    "env": [
                        {"name": "HF_ENDPOINT", "value": "http://attacker.example"},
                        {"name": "HF_TOKEN", "secretRef": {"name": "database", "key": "password"}},
                    ]
                },
            },
            "policy.envSecretRefs",
        ),
    ],
    ids=["directory of a node", "code from an image", "any Secret"],
)
def test_a_model_that_asks_for_more_has_no_pods_and_its_neighbour_has(
    server, namespace, start_operator, spec, value
):
    operator = start_operator("one", "--allow-file-below", "/srv/models")
    until(operator.leads)
    own = {"model": {"uri": "file:///srv/models/chat"}, "gpu": {"count": 0}, "replicas": 1}
    server.apply(
        model("thief", **{"gpu": {"count": 0}, "replicas": 1, **spec}),
        model("chat", **own),
        namespace=namespace,
    )
    refused = until(lambda: server.condition("thief", "Ready", namespace).get("message"))
    assert value in refused
    assert server.condition("thief", "Accepted", namespace)["reason"] == "NotAllowed"
    until(lambda: server.get("deployment", "chat", namespace))
    assert server.get("deployment", "thief", namespace) is None


def post(port, headers):
    report = {"waiting": 100000, "running": 0, "arrivals": 1, "idleSeconds": 0.0}
    body = {"gateway": "i-am-no-gateway", "models": {"prod/llama": report}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/demand",
        json.dumps(body).encode(),
        {"content-type": "application/json"} | headers,
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_demand_of_no_gateway_starts_no_pod(server, namespace, start_operator, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    operator = start_operator("one", "--pod-token-keys", str(keys))
    until(operator.leads)
    server.apply(
        model("llama", model={"uri": "pvc://m"}, gpu={"count": 0}, scaling={"max": 8}), namespace=namespace
    )
    until(lambda: server.get("deployment", "llama", namespace))
    for headers in ({}, {"x-wisp-gateway": "i-am-no-gateway", "x-wisp-token": "0" * 64}):
        assert post(operator.port, headers) == 401
    assert server.get("deployment", "llama", namespace)["spec"]["replicas"] == 0
    variables = server.get("deployment", "llama", namespace)["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]
    assert [variable["name"] for variable in variables].count("WISP_POD_TOKEN_SHA256") == 1


def test_the_name_of_the_api_servers_service_is_refused_at_apply(server):
    done = server.apply(model("kubernetes", model={"uri": "hf://acme/m"}), check=False)
    assert done.returncode != 0
    assert "Service of the API server itself" in done.stderr
    assert "selector" not in server.get("service", "kubernetes")["spec"]
