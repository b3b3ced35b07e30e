"""The chart installed with Helm, and requests to it from inside the cluster.

Fixtures for conftest.py. One release serves every test that asks for it; those tests run after all others,
since an operator serves the complete cluster. With ``KEEP=1`` a release that is there is upgraded and left.
"""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from kube import get, is_going, kubectl, until
from namespaces import execute, make_namespace, remove_namespace, restricted_pod, run_pod

HERE = Path(__file__).parents[1]
CHART = HERE.parents[1] / "charts/wisp"
NAME, SYSTEM, CLIENTS = "wisp", "wisp-system", "wisp-clients"
GATEWAY = f"http://wisp-gateway.{SYSTEM}.svc"
CRD = "customresourcedefinition.apiextensions.k8s.io/inferencemodels.wisp.dev"
KEEP = os.environ.get("KEEP", "") not in ("", "0")
# Not the chart's: objects that the cluster writes itself (an APIService for each CRD too), and kinds without
# objects of their own.
OF_THE_CLUSTER = (
    "event",
    "lease.coordination.k8s.io/node",
    "componentstatus",
    "endpointslice",
    "ipaddress",
    "apiservice",
)


class Release:
    """One installation of the chart.

    Attributes:
        before: every object of the cluster before it was installed.
        notes: output of Helm.
        took_s: seconds from ``helm install`` to both Deployments being available.
    """

    def __init__(self, before, notes, took_s):
        self.before, self.notes, self.took_s = before, notes, took_s

    def operators(self):
        """Names of the operator's pods that run."""
        return [pod["metadata"]["name"] for pod in pods_of("operator")]

    def leader(self):
        """Name of the pod that leads."""
        return get("lease", "wisp-operator", SYSTEM)["spec"].get("holderIdentity", "")

    def metrics(self, pod):
        """Samples of one operator, read through the API server."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8081/proxy/metrics"
        lines = [line for line in kubectl("get", "--raw", path).splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def helm(*arguments, check=True):
    done = subprocess.run(["helm", *arguments], text=True, capture_output=True, timeout=280)
    if check and done.returncode != 0:
        raise AssertionError(f"helm {' '.join(arguments)}: {done.stderr}")
    return done.stdout + done.stderr


def install(*flags):
    """Install or upgrade, wait until operator and gateway are available; return Helm's output."""
    values = [str(HERE / "values.yaml"), *os.environ.get("WISP_VALUES", "").split()]
    given = [part for file in values for part in ("--values", file)]
    where = ["--namespace", SYSTEM, "--wait", "--timeout", "240s"]
    return helm("upgrade", "--install", NAME, str(CHART), *given, *where, *flags)


def all_pods_of(component, namespace=SYSTEM):
    """Pods of the operator or the gateway, also those on their way out."""
    label = f"wisp-{component}"
    found = get("pods", namespace=namespace)
    return [pod for pod in found if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == label]


def pods_of(component):
    """Pods of the operator or the gateway that are not on their way out."""
    return [pod for pod in all_pods_of(component) if not is_going(pod)]


def settled(component, namespace=SYSTEM, release=NAME):
    """Wait until every pod of a component is of the newest template and ready, and none is on its way out."""

    def claim():
        found = get("deployment", f"{release}-{component}", namespace)
        wanted, seen = found["spec"]["replicas"], found.get("status", {})
        is_new = seen.get("observedGeneration") == found["metadata"]["generation"]
        pods = all_pods_of(component, namespace)
        ready = [c for pod in pods for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"]
        are_ready = len(pods) == len(ready) == wanted and all(c["status"] == "True" for c in ready)
        return is_new and seen.get("updatedReplicas", 0) == wanted and are_ready

    until(claim)


def everything():
    """Names of all objects of the cluster, with their namespaces."""
    names = set()
    for scope, show in (("true", ["-A"]), ("false", [])):
        kinds = kubectl("api-resources", f"--namespaced={scope}", "--verbs=list", "-o", "name").split()
        kinds = ",".join(kind for kind in kinds if not kind.startswith(OF_THE_CLUSTER))
        found = json.loads(kubectl("get", kinds, *show, "-o", "json"))["items"]
        for thing in found:
            where = thing["metadata"].get("namespace", "")
            names.add(f"{where}/{thing['kind']}.{thing['apiVersion']}/{thing['metadata']['name']}")
    return {name for name in names if not name.startswith("kube-node-lease/")}


@pytest.fixture(scope="session")
def release():
    """The chart, installed on a cluster that has nothing of Wisp."""
    if KEEP and "deployed" in helm("status", NAME, "--namespace", SYSTEM, check=False):
        install()
        kubectl("rollout", "restart", "deployment", "-n", SYSTEM)  # images of the same tag may be newer
        for component in ("operator", "gateway"):
            settled(component)
        yield Release(None, "", 0.0)
        return
    helm("uninstall", NAME, "--namespace", SYSTEM, "--wait", "--ignore-not-found")
    kubectl("delete", CRD, "--ignore-not-found", "--timeout=50s")
    make_namespace(SYSTEM)
    before, began = everything(), time.monotonic()
    notes = install()
    yield Release(before, notes, time.monotonic() - began)
    if not KEEP:
        helm("uninstall", NAME, "--namespace", SYSTEM, "--wait", "--ignore-not-found")
        remove_namespace(CLIENTS, SYSTEM)


@pytest.fixture(scope="session")
def clients(release):
    """The namespace where clients run, with the scripts of tests/cluster/pods and one pod to ask from."""
    if not (KEEP and kubectl("get", "pod", "ask", "-n", CLIENTS, check=False).returncode == 0):
        make_namespace(CLIENTS)
    put_scripts()
    run_pod(CLIENTS, client_pod("ask", ["python3", "-c", "import signal; signal.pause()"]))
    return CLIENTS


def put_scripts():
    data = {file.name: file.read_text() for file in (*(HERE / "pods").glob("*.py"), HERE / "support/hub.py")}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": data}
    kubectl("apply", "-n", CLIENTS, "-f", "-", stdin=yaml.safe_dump(manifest))


def client_pod(name, command, **more):
    scripts = {"name": "scripts", "configMap": {"name": "scripts"}}
    return restricted_pod(
        name, command, volumes=[scripts], mounts=[{"name": "scripts", "mountPath": "/scripts"}], **more
    )


def ask(path, body=None, key="", at=GATEWAY, pod=(CLIENTS, "ask")):
    """Ask the gateway, or another address, from a pod: (status, headers, [(seconds, line)…])."""
    request = ["POST", at + path, json.dumps(body), key] if body is not None else ["GET", at + path, "", key]
    text = execute(*pod, "python3", "-u", "-", *request, stdin=(HERE / "pods/ask.py").read_bytes())
    first, *rest = (json.loads(line) for line in text.splitlines())
    return first["status"], first["headers"], [(line["at"], line["line"]) for line in rest]


def answer(path, body=None, **more):
    """The same for an answer that is one JSON document: (status, document)."""
    status, _, lines = ask(path, body, **more)
    return status, json.loads("\n".join(line for _, line in lines))


def chat(model, **more):
    """A request for a few tokens."""
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **more}
