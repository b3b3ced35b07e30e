"""The chart's roles are enough for everything the operator does, and for nothing more."""

import subprocess
from pathlib import Path

import pytest
import yaml
from kube import apply, condition, fake, get, kubectl, model, status, until
from operator_process import OperatorProcess

CHART = Path(__file__).resolve().parents[3] / "charts/wisp"
TEMPLATES = ("serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding", "lease")


@pytest.fixture(scope="module")
def account(shared_namespace, tmp_path_factory):
    """The chart's service account with the chart's roles: its name and a kubeconfig that holds its token."""
    shown = [flag for part in TEMPLATES for flag in ("-s", f"templates/operator-{part}.yaml")]
    command = ["helm", "template", "wisp", str(CHART), "-n", shared_namespace, *shown]
    command += ["--kube-version", "1.34.0"]
    manifests = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kubectl("apply", "-n", shared_namespace, "-f", "-", stdin=manifests)
    parts = [part for part in yaml.safe_load_all(manifests) if part]
    name = next(part["metadata"]["name"] for part in parts if part["kind"] == "ServiceAccount")
    lease = next(part["metadata"]["name"] for part in parts if part["kind"] == "Lease")
    token = kubectl("create", "token", name, "-n", shared_namespace).strip()
    config = yaml.safe_load(kubectl("config", "view", "--raw", "--minify", "-o", "yaml"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path_factory.mktemp("account") / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield f"system:serviceaccount:{shared_namespace}:{name}", path, lease
    for part in parts:
        if part["kind"].startswith("Cluster"):
            kubectl("delete", part["kind"], part["metadata"]["name"], check=False)


def test_the_operator_does_all_its_work_with_the_charts_roles(
    account, shared_namespace, namespace, no_kept_operator, tmp_path, monkeypatch
):
    _, path, lease = account
    log = tmp_path / "operator.log"
    with monkeypatch.context() as patched:
        patched.setenv("KUBECONFIG", str(path))
        operator = OperatorProcess(log, shared_namespace, "one", "--lease-name", lease)
    try:
        until(operator.leads)
        prefetched = {"model": {"uri": "hf://acme/none"}, "cache": {"type": "PVC", "prefetch": True}}
        apply(
            model("chat", replicas=2, runtime=fake(ready_after="0s")),
            model("lost", replicas=1, model={"uri": "file:///no/such/folder"}),
            model("kept", **prefetched),
            namespace=namespace,
        )
        until(lambda: status("chat", namespace).get("readyReplicas") == 2)
        until(lambda: get("pdb", namespace=namespace) and get("jobs", namespace=namespace))
        kubectl("scale", "imodel", "chat", "-n", namespace, "--replicas=1")
        apply(model("kept", model=prefetched["model"]), namespace=namespace)
        until(lambda: not get("pdb", namespace=namespace) and not get("jobs", namespace=namespace))
        until(lambda: condition("lost", "Ready", namespace) == ("False", "VolumeFailed"))
        until(lambda: "ScaledToZero" in {event["reason"] for event in get("events", namespace=namespace)})
        refused = [name for name in operator.metrics() if 'code="403"' in name]
        assert refused == []
        assert operator.stop() == 0
    finally:
        if operator.process.poll() is None:
            operator.kill()
        print(log.read_text()[-4000:])


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("list", "configmaps"),
        ("create", "pods"),
        ("delete", "pods"),
        ("create", "pods/exec"),
        ("delete", "deployments.apps"),
        ("deletecollection", "services"),
        ("delete", "persistentvolumeclaims"),
        ("patch", "nodes"),
        ("create", "namespaces"),
        ("patch", "inferencemodels.wisp.dev"),
        ("delete", "inferencemodels.wisp.dev"),
        ("create", "daemonsets.apps"),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
        ("create", "serviceaccounts/token"),
        ("impersonate", "users"),
        ("delete", "leases.coordination.k8s.io"),
    ],
)
def test_the_operator_may_not_do_what_it_need_not(account, verb, resource):
    user = account[0]
    answer = kubectl("auth", "can-i", verb, resource, "-n", user.split(":")[2], "--as", user, check=False)
    assert answer.stdout.strip() == "no"
