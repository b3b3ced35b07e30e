"""Stopping a model of ``wisp up`` by hand: its pods end, and the next request wakes it."""

import asyncio

import pytest

from wisp_operator import api
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.demand import DemandAggregator
from wisp_operator.core.fit.verdict import FitReport, FitResult
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.local import stops
from wisp_operator.local.controller import Controller
from wisp_operator.local.gateway.directory import can_stop


class Replicas:
    """A cluster without pods that records how many each model should have."""

    def __init__(self):
        self.wanted = {}

    def pods(self, key):
        return []

    def apply(self, key, deployment):
        self.wanted[key] = deployment["spec"]["replicas"]

    def delete(self, key):
        del self.wanted[key]


async def not_asked(_):
    return FitResult(FitReport("Unknown", "not asked"))


def model(**spec):
    metadata = {"name": "m"}
    body = {"model": {"uri": "hf://org/name"}, "gpu": {"count": 0}, **spec}
    return api.parse({"apiVersion": api.API_VERSION, "kind": api.KIND, "metadata": metadata, "spec": body})


def demand(arrivals, *, waiting=0, running=0):
    entry = {"waiting": waiting, "running": running, "arrivals": arrivals, "idleSeconds": 0.0}
    return {"gateway": "gw", "models": {"default/m": entry}}


@pytest.mark.parametrize(
    ("later", "replicas"),
    [
        (demand(5, running=1), 0),  # what runs finishes while the pods drain
        (demand(5), 0),
        (demand(6, running=1), 1),  # a request came
        (demand(5, waiting=1), 0),  # reported before the stop
    ],
)
def test_a_stopped_model_stays_at_zero_until_a_request_comes(later, replicas):
    async def run():
        cluster = Replicas()
        loop = Controller(
            cluster, fit=not_asked, publish=lambda _: None, settings=BuildSettings(), tokens=TokenKeys(None)
        )
        await loop.set_models([model()])
        loop.record_demand(demand(5, running=1))
        loop.reconcile_now()
        assert cluster.wanted == {"default/m": 1}
        assert loop.stop_pods("default/m", 5)
        loop.reconcile_now()
        assert cluster.wanted == {"default/m": 0}
        loop.record_demand(later)
        loop.reconcile_now()
        return cluster.wanted["default/m"]

    assert asyncio.run(run()) == replicas


@pytest.mark.parametrize(
    ("spec", "expect"),
    [
        ({}, True),
        ({"scaling": {"min": 1}}, False),  # it would come back at once
        ({"replicas": 1}, False),
        ({"suspend": True}, False),
    ],
)
def test_only_a_model_that_goes_to_zero_may_be_stopped(spec, expect):
    assert can_stop(model(**spec)) is expect


def test_a_model_that_is_not_there_is_not_stopped():
    async def run():
        loop = Controller(
            Replicas(),
            fit=not_asked,
            publish=lambda _: None,
            settings=BuildSettings(),
            tokens=TokenKeys(None),
        )
        return loop.stop_pods("default/other", 0)

    assert not asyncio.run(run())


def test_a_request_whose_pod_was_stopped_under_it_wakes_the_model_again(monkeypatch):
    monkeypatch.setattr(stops, "REPORTED_S", 0.0)  # the report is newer than the stop

    async def run():
        cluster = Replicas()
        settings, tokens = BuildSettings(), TokenKeys(None)
        loop = Controller(cluster, fit=not_asked, publish=lambda _: None, settings=settings, tokens=tokens)
        await loop.set_models([model()])
        loop.stop_pods("default/m", 5)
        loop.record_demand(demand(5, waiting=1))
        loop.reconcile_now()
        return cluster.wanted["default/m"]

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize(
    ("reports", "held"),
    [
        ([(4, 0)], True),
        ([(0, 0)], True),  # a gateway that was started again, and had no request yet
        ([(4, 0), (4, 1)], False),  # it counts from 0
        ([(4, 3)], False),
        ([(1, 4), (4, 5)], True),  # sent before the stop
        ([(4, 0), (5, 0), (6, 7)], False),
    ],
)
def test_a_restarted_gateways_requests_wake_a_model_that_was_stopped_after_more(reports, held):
    by_hand, aggregator = stops.Stops(), DemandAggregator()
    by_hand.add("default/m", 5, 0.0)
    for at, arrivals in reports:
        by_hand.record(aggregator.record(demand(arrivals), at), at)
    assert by_hand.holds("default/m", aggregator.total("default/m", at), at) is held


def test_a_model_that_rejects_while_it_is_at_zero_wakes_after_its_gateway_was_started_again(monkeypatch):
    monkeypatch.setattr(stops, "REPORTED_S", 0.0)

    async def run():
        cluster = Replicas()
        settings, tokens = BuildSettings(), TokenKeys(None)
        loop = Controller(cluster, fit=not_asked, publish=lambda _: None, settings=settings, tokens=tokens)
        await loop.set_models([model(coldStart={"mode": "Reject"})])
        assert loop.stop_pods("default/m", 100)
        loop.record_demand(demand(1))
        loop.reconcile_now()
        return cluster.wanted["default/m"]

    assert asyncio.run(run()) == 1
