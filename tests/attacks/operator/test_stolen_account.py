"""Rights that a stolen account of the operator does not have, and its work within them."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
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
OPTIONAL = (
    ("monitoring.coreos.com", "podmonitors", "PodMonitor"),
    ("inference.networking.k8s.io", "inferencepools", "InferencePool"),
)


def optional_crd(group, plural, kind):
    """A CRD that some clusters have, without its schema."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    metadata = {"name": f"{plural}.{group}"}
    # The server asks for it in groups of Kubernetes' own.
    metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture(scope="module")
def account(server):
    """The operator's account with the chart's rights and admission policies."""
    helm = binary_folder() / "helm"
    if not Path(helm).exists():
        pytest.skip(f"{helm} is missing; `make cluster` builds it")
    command = [str(helm), "template", "wisp", str(ROOT / "charts/wisp"), "--namespace", SPACE]
    command += ["--kube-version", "1.34", "--set", "operator.markIdlePods=true"]
    command += ["--set", "policy.fileDirectories={/srv/models},policy.priorityClasses={inference-*}"]
    command += [part for name in PARTS for part in ("--show-only", f"templates/operator-{name}.yaml")]
    manifests = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    server.kubectl("create", "namespace", SPACE, check=False)  # other files have it too
    server.apply(*(optional_crd(*names) for names in OPTIONAL))
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


def created(server, account, namespace, manifest, plural="deployments"):
    """Create an object as ``account``; the refusal, empty if it was taken."""
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return refusal_of(server, account, "POST", f"{root}/namespaces/{namespace}/{plural}", manifest)


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

ACCOUNT_VOLUME = {"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
SECRET_VOLUME = {"name": "s", "secret": {"secretName": "database"}}


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
        (deployment(security=HARMLESS | {"runAsUser": 0, "runAsNonRoot": False}), "no pods with an account"),
        (deployment(security=HARMLESS | {"capabilities": {"add": ["NET_RAW"]}}), "no pods with an account"),
        (deployment(securityContext={"runAsNonRoot": True, "runAsUser": 0}), "no pods with an account"),
        (deployment(volumes=[ACCOUNT_VOLUME]), "mounts no volume of another kind"),
        (deployment(volumes=[SECRET_VOLUME]), "mounts no volume of another kind"),
        (deployment(host_path="/"), "mounts no directory of a node"),
        (deployment(priorityClassName="system-node-critical"), "gives pods no priority"),
        (deployment(priorityClassName="inference-low"), ""),  # opened by policy.priorityClasses
        (deployment(host_path="/srv/models-of-others"), "mounts no directory of a node"),
    ],
)
def test_a_stolen_account_of_the_operator_makes_no_pod_with_more_rights_than_a_models(
    server, namespace, account, manifest, refusal
):
    said = created(server, account, namespace, manifest)
    assert (refusal in said) if refusal else said == ""


def child(version, kind, **spec):
    """An object of model ``m``, as the operator's account would make it."""
    metadata = {"name": "m", "labels": {"wisp.dev/model": "m"}, "ownerReferences": [OWNER]}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def service(**spec):
    return child("v1", "Service", selector={"wisp.dev/model": "m"}, ports=[{"port": 80}], **spec)


def budget(labels):
    return child("policy/v1", "PodDisruptionBudget", maxUnavailable=0, selector={"matchLabels": labels})


def monitor(labels, **endpoint):
    endpoints = [{"port": "http", "path": "/metrics", **endpoint}]
    selector = {"matchLabels": labels}
    return child("monitoring.coreos.com/v1", "PodMonitor", selector=selector, podMetricsEndpoints=endpoints)


def pool(labels):
    version = "inference.networking.k8s.io/v1"
    return child(version, "InferencePool", selector={"matchLabels": labels})


MINE = {"wisp.dev/model": "m"}


@pytest.mark.parametrize(
    ("plural", "manifest", "refusal"),
    [
        ("services", service(), ""),
        ("services", service(externalIPs=["10.0.0.7"]), "no address outside"),  # takes others' traffic
        ("services", service(type="LoadBalancer"), "no address outside"),
        ("poddisruptionbudgets", budget(MINE), ""),
        ("poddisruptionbudgets", budget({"app": "redis"}), "of the pods of models alone"),  # blocks a drain
        ("podmonitors", monitor(MINE), ""),
        ("podmonitors", monitor({"app": "redis"}), "of the pods of models alone"),
        ("podmonitors", monitor(MINE, bearerTokenSecret={"name": "db", "key": "k"}), "no credentials"),
        ("podmonitors", monitor(MINE, authorization={"credentials": {"name": "db"}}), "no credentials"),
        ("inferencepools", pool(MINE), ""),
        ("inferencepools", pool({"app": "redis"}), "of the pods of models alone"),
    ],
)
def test_a_stolen_account_of_the_operator_reaches_no_traffic_and_no_pods_of_others(
    server, namespace, account, plural, manifest, refusal
):
    said = created(server, account, namespace, manifest, plural)
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


def test_a_stolen_account_of_the_operator_takes_no_strangers_pool(server, namespace, account):
    server.apply(pool({"app": "mine"}) | {"metadata": {"name": "theirs"}}, namespace=namespace)
    path = f"/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools/theirs"
    said = refusal_of(server, account, "DELETE", path, {})
    assert "changes and deletes objects of models alone" in said


@contextmanager
def operator_of(server, tmp_path, *flags):
    """The operator with its own account, rights and policies, once it leads."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    token = server.kubectl("create", "token", "wisp-operator", "-n", SPACE).strip()
    config["users"][0]["user"] = {"token": token}
    place = SimpleNamespace(home=tmp_path, kubeconfig=tmp_path / "kubeconfig")
    place.kubeconfig.write_text(yaml.safe_dump(config))
    operator = Operator(place, SPACE, "one", "--lease-name", "wisp-operator", *flags)
    try:
        until(operator.leads)
        yield operator
    finally:
        operator.stop()
        print(operator.log.read_text()[-4000:])


def test_pods_of_a_model_end_once_it_asks_for_what_is_closed(server, namespace, account, tmp_path):
    with operator_of(server, tmp_path, "--allow-file-below", "/srv/models"):
        uri = {"uri": "file:///srv/models/x"}
        server.apply(model("thief", model=uri, gpu={"count": 0}, replicas=1), namespace=namespace)
        until(lambda: (server.get("deployment", "thief", namespace) or {}).get("spec", {}).get("replicas"))
        server.apply(
            model("thief", model={"uri": "file:///etc"}, gpu={"count": 0}, replicas=1), namespace=namespace
        )
        until(lambda: server.condition("thief", "Accepted", namespace).get("reason") == "NotAllowed")
        until(lambda: server.get("deployment", "thief", namespace)["spec"]["replicas"] == 0)
        # Whoever may scale the Deployment starts nothing that was refused.
        template = server.get("deployment", "thief", namespace)["spec"]["template"]
        assert "hostPath" not in json.dumps(template)


def test_the_operator_does_its_work_within_its_roles_and_policies(server, namespace, account, tmp_path):
    fetched = {"model": {"uri": "hf://acme/none"}, "replicas": 1}
    claim = fetched | {"cache": {"type": "PVC", "prefetch": True}}
    server.apply(model("old", model={"uri": "pvc://m"}, replicas=0), namespace=namespace)
    owner = OWNER | {"name": "old", "uid": server.get("inferencemodel", "old", namespace)["metadata"]["uid"]}
    of_old = {"name": "old", "labels": {"wisp.dev/model": "old"}, "ownerReferences": [owner]}
    server.apply(service() | {"metadata": of_old}, namespace=namespace)  # with an address, as made before
    with operator_of(server, tmp_path, "--allow-file-below", "/srv/models") as operator:
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
        released = '"clusterIP": "None"'
        until(lambda: released in json.dumps(server.get("service", "old", namespace)))
        statuses = {name: server.status(name, namespace) for name in ("file", "node", "claim")}
        assert "ChildRefused" not in json.dumps(statuses)
        assert [line for line in operator.read("/metrics").splitlines() if 'code="403"' in line] == []


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
