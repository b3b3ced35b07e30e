"""Faults of the cluster's own parts and of the operator: what is warm goes on, what is asked for wakes."""

import os
import signal
import time

import pytest
from fault_table import needs_our_node, table
from kube import get, kubectl, until
from node_processes import away, below, of_component, of_container, stopped
from release import SYSTEM, pods_of, settled
from rights import without_binding

FAULTS, fault = table()


def wakes(scene, name, within_s):
    """Wake a model that sleeps, and forget it."""
    code, _, document, took_s = scene.ask(name)
    assert code == 200, document
    assert took_s < within_s
    scene.forget(name)


def leading(scene):
    """The pod of the operator that leads."""
    names = {pod["metadata"]["name"]: pod for pod in pods_of("operator")}
    return until(lambda: names.get(scene.release.leader()), seconds=30)


@fault("kubelet away 5 s")
def kubelet_restarts(scene):
    with away("kubelet", 5):
        pass
    time.sleep(5)


@fault("containerd away 5 s")
def containerd_restarts(scene):
    with away("containerd", 5):
        pass
    time.sleep(3)


@fault("etcd away 10 s")
def etcd_restarts(scene):
    with away("etcd", 10):
        pass
    until(lambda: kubectl("get", "--raw", "/readyz", check=False).returncode == 0, seconds=60)


@fault("API server hangs 25 s")
def api_server_hangs(scene):
    with stopped(of_component("apiserver")):
        time.sleep(25)
    until(lambda: kubectl("get", "--raw", "/readyz", check=False).returncode == 0, seconds=60)


@fault("CoreDNS away 30 s, a model woken meanwhile")
def names_do_not_resolve(scene):
    sleeper = scene.asleep("woken-without-dns")
    with away("dns", 30):
        time.sleep(5)
        wakes(scene, sleeper, 25)


@fault("leading operator hangs 25 s, a model woken meanwhile")
def leader_hangs(scene):
    sleeper, leader = scene.asleep("woken-without-leader"), leading(scene)
    with stopped(*below(of_container(leader))):
        time.sleep(1)
        asked = scene.asking(sleeper)
        until(lambda: scene.release.leader() not in ("", leader["metadata"]["name"]), seconds=15)
        assert asked.result()[0] == 200
        time.sleep(max(0.0, scene.began + 25 - time.time()))
    scene.forget(sleeper)


@fault("Lease deleted, a model woken at once")
def lease_is_deleted(scene):
    sleeper = scene.asleep("woken-by-one-leader")
    kubectl("delete", "lease", "wisp-operator", "-n", SYSTEM)
    wakes_of = scene.asking(sleeper)
    until(lambda: get_holder() in scene.release.operators(), seconds=15)
    assert wakes_of.result()[0] == 200
    time.sleep(8)  # an earlier leader's time is over
    told = scene.events(sleeper)
    assert {reason: told.get(reason) for reason in ("Waking", "Serving")} == {"Waking": 1, "Serving": 1}
    scene.forget(sleeper)


def get_holder():
    try:
        return get("lease", "wisp-operator", SYSTEM)["spec"].get("holderIdentity", "")
    except AssertionError:  # nobody has made it again
        return ""


def refused_writes(scene):
    """Writes of the operators that were refused, so far."""
    samples = [scene.release.metrics(pod).items() for pod in scene.release.operators()]
    verbs = ("apply", "status", "event", "annotate")
    return sum(
        count
        for found in samples
        for name, count in found
        if 'code="403"' in name and any(f'verb="{verb}"' in name for verb in verbs)
    )


@fault("no binding of the operator's account 30 s, a model asked for meanwhile", may_be_stale=True)
def operators_have_no_rights(scene):
    sleeper, before = scene.asleep("woken-with-rights"), refused_writes(scene)
    with without_binding("wisp-operator"):
        asked = scene.asking(sleeper)
        time.sleep(30)
        refused = refused_writes(scene) - before
    assert asked.result()[0] == 200
    assert refused <= 24, refused  # two models, tried ever less often; it was 157
    scene.forget(sleeper)


@fault("no operator 25 s, models asked for meanwhile", may_be_stale=True)
def no_operator_runs(scene):
    patient = scene.asleep("patient")
    hurried = scene.asleep("hurried", coldStart={"maxWait": "15s"})
    kubectl("scale", "deployment", "wisp-operator", "-n", SYSTEM, "--replicas=0")
    try:
        until(lambda: not pods_of("operator"), seconds=30)
        held = scene.asking(patient)
        code, headers, document, _ = scene.ask(hurried)
        assert (code, document["error"]["code"]) == (503, "wait_expired")
        assert "operator" in document["error"]["message"]
        assert int(headers["retry-after"]) >= 10
        time.sleep(max(0.0, scene.began + 25 - time.time()))
    finally:
        kubectl("scale", "deployment", "wisp-operator", "-n", SYSTEM, "--replicas=2")
    assert held.result()[0] == 200
    settled("operator")
    scene.forget(patient, hurried)


@fault("SIGKILL of the leading operator")
def leader_is_killed(scene):
    leader = leading(scene)
    os.kill(of_container(leader), signal.SIGKILL)
    until(lambda: has_restarted(leader), seconds=30)
    wakes(scene, scene.asleep("woken-after-a-kill"), 30)
    settled("operator")


def has_restarted(pod):
    found = get("pod", pod["metadata"]["name"], SYSTEM)["status"]["containerStatuses"][0]
    return found["restartCount"] > pod["status"]["containerStatuses"][0]["restartCount"]


@pytest.mark.parametrize("row", FAULTS, ids=str)
@needs_our_node
def test_no_request_is_lost_while_the_cluster_is_not_itself(under_load, row):
    under_load(row)
