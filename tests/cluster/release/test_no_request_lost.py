"""Under a steady load things are scaled, rolled, killed and restarted, and no request is lost.

The load runs in a pod, asks the gateway's Service at RATE requests a second, streaming and plain in turn,
and counts as :mod:`load` says; here nothing but answers, answers after a retry and refusals with a time to
come back may happen. Faults have a table of their own, ``tests/cluster/faults``.
"""

import json
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from kube import NODE_RUN, apply, condition, get, is_going, kubectl, model, moments, status, until
from namespaces import execute, is_absent, make_namespace, put_weights, run_pod
from release import CLIENTS, GATEWAY, SYSTEM, client_pod, install, pods_of, settled
from tiny import write_tiny

RATE = 20
NAMESPACE = "wisp-load"
RESTART = Path(__file__).parents[1] / "node/restart.sh"
TINY = {"model": {"uri": "pvc://weights/tiny"}, "runtime": {"maxContext": 512}}
WARM = {"scaling": {"min": 1, "max": 1}}


class Load:
    """The load of one test, in a pod of its own."""

    def rate(self, rate):
        write = f"open('/tmp/rate', 'w').write('{rate}')"
        execute(CLIENTS, "load", "python3", "-c", write, check=rate != "stop")  # it may end before this does

    def goes_on(self, seconds):
        """Let it run on for some seconds."""
        time.sleep(seconds)

    def report(self):
        self.rate("stop")
        until(lambda: get("pod", "load", CLIENTS)["status"]["phase"] in ("Succeeded", "Failed"))
        return json.loads(kubectl("logs", "load", "-n", CLIENTS).splitlines()[-1])


@pytest.fixture
def load(clients, record, request):
    """Begin a load on a model; what it counted is asserted by :func:`none_lost`."""

    @contextmanager
    def begin(name, rate=RATE):
        kubectl("delete", "pod", "load", "-n", CLIENTS, "--ignore-not-found", "--timeout=150s")
        command = ["python3", "/scripts/load.py", GATEWAY, f"{NAMESPACE}/{name}", str(rate)]
        run_pod(CLIENTS, client_pod("load", command))
        load = Load()
        load.goes_on(2)
        yield load
        load.goes_on(3)
        found = load.report()
        row = request.node.name.removeprefix("test_no_request_is_lost_")
        record("load", row=row, rate=rate or RATE, **found)
        print(json.dumps(found, indent=1))
        assert found["lost"] == found["error"] == found["cut"] == 0, "\n".join(found["troubles"])
        assert found["answered"] + found["retried"] + found["refused"] == found["sent"]
        assert found["answered"] > 20

    return begin


@pytest.fixture(scope="module")
def namespace(clients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert write_tiny(folder) < 1e6
    make_namespace(NAMESPACE)
    put_weights(NAMESPACE, tiny=folder)
    return NAMESPACE


@pytest.fixture(scope="module")
def warm(namespace):
    """A model with one pod that stays."""
    apply(model("warm", **TINY, **WARM), namespace=namespace)
    until(lambda: status("warm", namespace).get("state") == "Ready")
    return "warm"


def pods(name):
    found = get("pods", namespace=NAMESPACE)
    return [pod for pod in found if pod["metadata"].get("labels", {}).get("wisp.dev/model") == name]


def ready(name):
    return status(name, NAMESPACE).get("readyReplicas", 0)


def test_no_request_is_lost_from_zero_to_three_and_back(namespace, load):
    scaling = {
        "max": 3,
        "targetConcurrency": 1,
        "idleAfter": "3s",
        "stableWindow": "6s",
        "panicWindow": "2s",
    }
    apply(model("wide", **TINY, scaling=scaling), namespace=namespace)
    until(lambda: status("wide", namespace).get("state") == "Asleep")
    with load("wide", rate=2 * RATE) as steady:
        until(lambda: ready("wide") == 3)
        steady.rate(2)
        until(lambda: len(pods("wide")) == 1)
        with moments("pods", namespace) as seen:
            steady.rate(0)
            until(lambda: any(map(is_going, seen)))
        steady.rate(RATE)  # the last pod is on its way out
        until(lambda: ready("wide") >= 1)
        steady.rate(0)
        until(lambda: pods("wide") == [])
        until(lambda: status("wide", namespace)["state"] == "Asleep")
        steady.rate(RATE)
    kubectl("delete", "imodel", "wide", "-n", namespace)


def test_no_request_is_lost_while_a_changed_spec_rolls_out(warm, load):
    with load(warm):
        before = {pod["metadata"]["uid"] for pod in pods(warm)}
        patch = {"spec": {"runtime": {"maxConcurrent": 7}}}
        kubectl("patch", "imodel", warm, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
        until(lambda: ready(warm) == len(pods(warm)) == 1 and not before & {uid(pod) for pod in pods(warm)})


def uid(thing):
    return thing["metadata"]["uid"]


def test_no_request_is_lost_with_the_only_pod_of_a_model(warm, load):
    with load(warm):
        gone = pods(warm)[0]
        kubectl("delete", "pod", gone["metadata"]["name"], "-n", NAMESPACE, "--timeout=150s")
        until(lambda: uid(gone) not in [uid(pod) for pod in pods(warm)] and ready(warm) == 1)


def test_no_request_is_lost_with_a_gateway(warm, load):
    with load(warm):
        gone = pods_of("gateway")[0]["metadata"]["name"]
        kubectl("delete", "pod", gone, "-n", SYSTEM, "--wait=false")
        until(lambda: is_absent("pod", gone, SYSTEM))
        settled("gateway")


def test_no_request_is_lost_with_the_leading_operator(release, warm, load):
    with load(warm):
        gone = until(release.leader)
        kubectl("delete", "pod", gone, "-n", SYSTEM, "--timeout=150s")
        until(lambda: release.leader() not in ("", gone))
        settled("operator")


def test_no_request_is_lost_when_the_leader_dies_as_a_model_wakes(release, namespace, load):
    apply(model("sleeper", **TINY), namespace=namespace)
    until(lambda: status("sleeper", namespace).get("state") == "Asleep")
    with load("sleeper", rate=0) as steady:
        kubectl("delete", "pod", until(release.leader), "-n", SYSTEM, "--grace-period=0", "--force")
        steady.rate(RATE)
        until(lambda: ready("sleeper") == 1)
    settled("operator")
    kubectl("delete", "imodel", "sleeper", "-n", namespace)


def test_no_request_is_lost_with_an_upgrade_of_the_release(warm, load):
    with load(warm):
        install("--set", "operator.logLevel=debug", "--set", "gateway.logLevel=warning")
        settled("gateway")
    install()  # pods on their way out disturb no later test


@pytest.mark.skipif(not NODE_RUN.exists(), reason="restarts a component of tests/cluster/node")
def test_no_request_is_lost_while_the_api_server_restarts(release, warm, load):
    with load(warm) as steady:
        subprocess.run([str(RESTART), "apiserver", "3"], check=True, timeout=60)  # away for three seconds
        until(lambda: kubectl("get", "--raw", "/readyz", check=False).returncode == 0)
        steady.goes_on(3)
        gone = pods(warm)[0]["metadata"]["name"]  # watchers see the deletion
        kubectl("delete", "pod", gone, "-n", NAMESPACE, "--timeout=150s")
        until(lambda: ready(warm) == 1 and gone not in [pod["metadata"]["name"] for pod in pods(warm)])
    until(lambda: condition(warm, "Ready", NAMESPACE) == ("True", "Serving"))
