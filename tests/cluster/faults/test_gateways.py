"""Faults of the gateways: processes that end or hang, rights that are gone, proxies that are away."""

import os
import signal
import time

import pytest
from fault_table import needs_our_node, table
from kube import kubectl, until
from node_processes import away, below, of_container, stopped
from release import SYSTEM, pods_of, settled
from rights import without_binding
from truth import is_ready

FAULTS, fault = table()


def a_gateway():
    return until(lambda: [pod for pod in pods_of("gateway") if is_ready(pod)])[0]


def restarts():
    return sum(c["restartCount"] for pod in pods_of("gateway") for c in pod["status"]["containerStatuses"])


@fault("SIGKILL of a gateway", may_cut=True)
def gateway_is_killed(scene):
    before = restarts()
    os.kill(of_container(a_gateway()), signal.SIGKILL)
    until(lambda: restarts() > before, seconds=60)
    settled("gateway")


@fault("SIGSTOP of a gateway 10 s")
def gateway_hangs(scene):
    with stopped(*below(of_container(a_gateway()))):
        time.sleep(10)


@fault("SIGSTOP of a gateway 60 s", may_cut=True)
def gateway_hangs_for_long(scene):
    with stopped(*below(of_container(a_gateway()))):
        time.sleep(60)
    settled("gateway")


@fault("kube-proxy away 4 s, a gateway's pod deleted")
def proxy_is_away(scene):
    with away("proxy", 4):
        kubectl("delete", "pod", a_gateway()["metadata"]["name"], "-n", SYSTEM, "--wait=false")
    settled("gateway")


@fault("no binding of the gateways' account 35 s, the model's pod deleted meanwhile")
def gateways_have_no_rights(scene):
    before = scene.pods()
    with without_binding("wisp-gateway"):
        time.sleep(5)
        kubectl("delete", "pod", before[0]["metadata"]["name"], "-n", scene.namespace, "--wait=false")
        time.sleep(30)
    until(lambda: scene.is_replaced(before), seconds=60)


@pytest.mark.parametrize("row", FAULTS, ids=str)
@needs_our_node
def test_no_request_is_lost_but_streams_of_a_killed_gateway(under_load, row):
    under_load(row)
