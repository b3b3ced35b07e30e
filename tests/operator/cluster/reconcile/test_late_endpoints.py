"""Endpoints that Kubernetes writes late are asked for again, and only where a gateway waits for them."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from recording_cluster import World

from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.reconcile.late_endpoints import ASKED_AT, LateEndpoints
from wisp_operator.core.demand import Report
from wisp_operator.core.observation import Observation, ObservedPod

MODEL = SimpleNamespace(key="a/chat", namespace="a", name="chat", uid="u1")
SERVICE = {"metadata": {"name": "chat", "ownerReferences": [{"uid": "u1", "controller": True}]}}


def served_by(*pods):
    world = World({"replicas": len(pods)})
    for name, age_s in pods:
        world.pod(name, age_s=age_s)
    world.reconcile()
    return world


def test_a_service_is_changed_where_a_gateway_waits_for_a_pod_that_is_ready():
    world = served_by(("chat-1", 60.0))
    world.ask(waiting=1, ready=0)
    world.reconcile()
    assert list(world.annotated) == ["chat"]
    assert list(world.annotated["chat"]) == [ASKED_AT]
    assert world.dependencies.metrics.total("endpoint_requests") == 1
    world.annotated.clear()
    world.reconcile()
    assert world.annotated == {}  # Kubernetes gets some seconds


@pytest.mark.parametrize(
    ("age_s", "report"),
    [
        (60.0, {"waiting": 1, "ready": 1}),  # it knows the pod, which is full
        (60.0, {"waiting": 0, "ready": 0}),  # nobody waits
        (60.0, {"waiting": 1}),  # a gateway of an earlier release
        (1.0, {"waiting": 1, "ready": 0}),  # ready this moment
    ],
)
def test_a_service_is_left_alone_otherwise(age_s, report):
    world = served_by(("chat-1", age_s))
    world.ask(**report)
    world.reconcile()
    assert world.annotated == {}


def test_one_gateway_of_two_that_misses_one_pod_of_two_is_enough():
    world = served_by(("chat-1", 60.0), ("chat-2", 60.0))
    world.ask(waiting=0, ready=0, gateway="idle")
    world.ask(waiting=3, ready=2, gateway="sees-all")
    world.reconcile()
    assert world.annotated == {}
    world.ask(waiting=3, ready=1, gateway="late")
    world.reconcile()
    assert "chat" in world.annotated


def test_while_it_lasts_a_service_is_changed_ever_more_rarely():
    changes, clock = [], 1000.0

    async def annotate(kind, namespace, name, annotations):
        changes.append(clock)
        raise ApiError("/services", 403, "Forbidden", "by a webhook")  # and no refusal ends a reconcile

    caches = SimpleNamespace(child=lambda manifest: SERVICE)
    late = LateEndpoints(caches, SimpleNamespace(annotate=annotate), Metrics())
    observation = Observation(pods=(ObservedPod("chat-1", "Ready", ready_since=0.0),))
    demand = Report(waiting=1, running=0, arrivals=1, idle_s=0.0, at=0.0, ready=0)
    for clock in range(1000, 1300):
        asyncio.run(late.hasten(MODEL, observation, demand, float(clock)))
    pauses = [after - before for before, after in itertools.pairwise(changes)]
    assert pauses == [5] * 11 + [60] * 4


def test_a_service_of_a_stranger_is_never_changed():
    changes = []
    caches = SimpleNamespace(child=lambda manifest: {"metadata": {"name": "chat"}})
    late = LateEndpoints(caches, SimpleNamespace(annotate=changes.append), Metrics())
    observation = Observation(pods=(ObservedPod("chat-1", "Ready", ready_since=0.0),))
    demand = Report(waiting=1, running=0, arrivals=1, idle_s=0.0, at=0.0, ready=0)
    asyncio.run(late.hasten(MODEL, observation, demand, 1000.0))
    assert changes == []
