"""A release of some namespaces: operator and gateway work with its Roles alone, and see nothing else."""

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import suppress
from types import SimpleNamespace

import pytest
import yaml
from api_server import ROOT, Operator, binary_folder, free_port, model, until

SPACE, SERVED, OTHER = "wisp-narrow", "narrow-team", "narrow-stranger"
SETTINGS = ("crd.install=false", "operator.limitWrites=false", f"watchNamespaces={{{SERVED}}}")


@pytest.fixture(scope="module")
def release(server, tmp_path_factory):
    """Kubeconfigs of the operator's and the gateway's accounts, with the rights that the chart gives them."""
    helm = binary_folder() / "helm"
    if not helm.exists():
        pytest.skip(f"{helm} is missing; `make cluster` builds it")
    command = [str(helm), "template", "wisp", str(ROOT / "charts/wisp"), "--namespace", SPACE]
    command += ["--kube-version", "1.34", *(flag for setting in SETTINGS for flag in ("--set", setting))]
    documents = yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rights = ("ServiceAccount", "Role", "RoleBinding", "Lease")
    for namespace in (SPACE, SERVED, OTHER):
        server.kubectl("create", "namespace", namespace)
    for document in [document for document in documents if document["kind"] in rights]:
        server.apply(document, namespace=document["metadata"]["namespace"])
    home = tmp_path_factory.mktemp("narrow")
    yield {name: account(server, home, f"wisp-{name}") for name in ("operator", "gateway")}
    for namespace in (SPACE, SERVED, OTHER):
        server.delete_namespace(namespace)


def account(server, home, name):
    """The API server as an account reaches it."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": server.kubectl("create", "token", name, "-n", SPACE).strip()}
    (home / name).write_text(yaml.safe_dump(config))
    return SimpleNamespace(home=home, kubeconfig=home / name)


def is_ready(operator):
    with suppress(OSError):
        return operator.read("/readyz") == "ok\n"
    return False


def test_the_operator_serves_its_namespaces_and_asks_for_nothing_cluster_wide(server, release):
    operator = Operator(release["operator"], SPACE, "one", "--watch-namespaces", SERVED)
    try:
        until(operator.leads)
        until(lambda: is_ready(operator))  # with nothing to watch yet, as after an installation
        for namespace in (SERVED, OTHER):
            server.apply(model("chat", replicas=1, model={"uri": "pvc://m"}), namespace=namespace)
        until(lambda: (server.get("deployment", "chat", SERVED) or {}).get("spec", {}).get("replicas"))
        until(lambda: server.condition("chat", "Accepted", SERVED))
        server.kubectl("scale", "imodel", "chat", "--replicas=2", "-n", SERVED)
        until(lambda: server.get("pdb", "chat", SERVED))
        assert server.get("deployment", "chat", OTHER) is None
        assert server.status("chat", OTHER) == {}
        refused = [line for line in operator.read("/metrics").splitlines() if 'code="403"' in line]
        assert refused == []
        assert "forbidden" not in operator.log.read_text()  # kopf's watches count nowhere
    finally:
        operator.stop()


def test_the_gateway_knows_the_models_of_its_namespaces_and_is_ready(server, release, tmp_path):
    for namespace in (SERVED, OTHER):
        server.apply(model("small", replicas=0, model={"uri": "pvc://m"}), namespace=namespace)
    port, log = free_port(), tmp_path / "gateway.log"
    command = [sys.executable, "-m", "wisp_gateway", "--directory", "kubernetes", "--namespace", SERVED]
    environment = {**os.environ, "KUBECONFIG": str(release["gateway"].kubeconfig)}
    with log.open("wb") as file:
        gateway = subprocess.Popen([*command, "--port", str(port)], env=environment, stderr=file, stdout=file)
    try:

        def models():
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
                return {entry["id"] for entry in json.load(answer)["data"]}
            return set()

        until(lambda: any("small" in name for name in models()))
        assert not any(OTHER in name for name in models())
        assert "forbidden" not in log.read_text()
    finally:
        gateway.terminate()
        gateway.wait(20)


def helm(server, command, release, *settings):
    """Run helm on a release in a namespace of its name; its exit status and all that it said."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    where = ["--namespace", release, "--kubeconfig", str(server.kubeconfig)]
    chart = [] if command == "uninstall" else [str(ROOT / "charts/wisp"), "--create-namespace", *flags]
    if command == "upgrade":
        chart.remove("--create-namespace")
    full = [str(binary_folder() / "helm"), command, release, *chart, *where]
    done = subprocess.run(full, text=True, capture_output=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_each_namespace_has_one_release_and_an_upgrade_keeps_an_autoscalers_number(server, namespace):
    """Nothing runs here: Helm looks at what the other release left in the cluster."""
    settings = ("crd.install=false", "operator.limitWrites=false", f"watchNamespaces={{{namespace}}}")
    one, two = f"{namespace}-one", f"{namespace}-two"
    try:
        assert helm(server, "install", one, *settings)[0] == 0
        assert helm(server, "upgrade", one, *settings)[0] == 0  # it is not in its own way
        code, said = helm(server, "install", two, *settings)
        assert code != 0
        assert f"a release of Wisp already, {one} in namespace {one}" in said
        assert f"serves namespace {namespace}" in said
        code, said = helm(server, "install", two, "crd.install=false")
        assert (code != 0, f"{one} in namespace {one}" in said) == (True, True)
        gateway = f"{one}-wisp-gateway"
        server.kubectl("scale", f"deployment/{gateway}", "-n", one, "--replicas=5")
        assert helm(server, "upgrade", one, *settings, "gateway.autoscaling.enabled=true")[0] == 0
        assert server.get("deployment", gateway, one)["spec"]["replicas"] == 5
    finally:
        for name in (one, two):
            helm(server, "uninstall", name)
            server.delete_namespace(name)
