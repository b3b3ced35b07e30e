"""Demand reports to several replicas of the operator."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from wisp_gateway.reporting.demand import MAX_MODELS, MAX_TRACED_MODELS, DemandReporter, report
from wisp_gateway.routing.request_queue import QueuedRequest, RequestQueue
from wisp_operator.core.demand import DemandAggregator


async def _take(pod, seen, writer):
    writer.write(b"HTTP/1.1 204 X\r\n\r\n")


async def _hang(pod, seen, writer):
    await asyncio.sleep(300)


@pytest.fixture
def operators(world, monkeypatch):
    """Two replicas on one port, as a headless Service names them."""
    first = world.pod(_take)
    second = world.pod(_take, host="127.0.0.2", port=first.port)
    hosts = [first.address, second.address]

    async def resolve(self):
        return set(hosts)

    monkeypatch.setattr(DemandReporter, "_resolve", resolve)
    monkeypatch.setattr("wisp_gateway.reporting.demand.RESOLVE_S", 0.05)
    return first, second, hosts


def test_demand_goes_to_every_replica_of_the_operator(world, operators):
    first, second, hosts = operators
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 1})
    world.start(demand_url=f"http://operator:{first.port}/demand", name="gw")
    world.until(lambda: first.seen and second.seen)
    world.post()
    for replica in (first, second):
        assert any(seen.json["models"]["default/m"]["waiting"] == 1 for seen in replica.seen)
    hosts.pop()  # its pod is gone
    world.until(lambda: world.gateway._demand.addresses == {first.address})
    time.sleep(0.2)  # a report that was on its way has come
    before, first_before = len(second.seen), len(first.seen)
    world.until(lambda: len(first.seen) > first_before + 1)
    assert len(second.seen) == before


def test_a_replica_that_hangs_delays_no_other(world, operators, caplog, monkeypatch):
    monkeypatch.setattr("wisp_gateway.reporting.demand.TIMEOUT_S", 300.0)
    first, second, _ = operators
    first.handler = _hang
    world.model("m", state="Asleep", coldStart={"maxWaitSeconds": 1})
    world.start(demand_url=f"http://operator:{first.port}/demand")
    world.until(lambda: first.seen and second.seen)
    waiting = world.background(world.post)
    world.until(lambda: any(seen.json["models"]["default/m"]["waiting"] for seen in second.seen))
    assert waiting.result(60).status_code == 503
    assert "models at zero stay there" not in caplog.text


def test_a_bug_in_the_reports_to_one_replica_ends_the_gateway(world, operators, monkeypatch):
    """Without them that replica would wake nothing, and no log would say so."""
    first, second, _ = operators
    post = DemandReporter.post

    async def broken(self, address):
        if address == second.address:
            raise RuntimeError("a bug")
        return await post(self, address)

    monkeypatch.setattr(DemandReporter, "post", broken)
    world.start(demand_url=f"http://operator:{first.port}/demand")
    with pytest.raises(ExceptionGroup) as raised:
        world._running.result(60)
    assert [str(error) for error in raised.value.exceptions] == ["a bug"]
    world.gateway = None


def queue(waiting, traces=()):
    found = RequestQueue()
    for number in range(waiting):
        trace = traces[number] if number < len(traces) else ""
        found.requeue_front(QueuedRequest(None, float(number), 60.0, lambda _: None, trace=trace))
    return found


def state(key, *, waiting=0, running=0, idle_s=None, ready=0, traces=()):
    return SimpleNamespace(
        model=SimpleNamespace(key=key),
        queue=queue(waiting, traces),
        running=running,
        arrivals=3,
        idle_s=idle_s,
        pods={number: SimpleNamespace(is_ready=True) for number in range(ready)},
    )


def traceparent(number, flags="01"):
    return f"00-{number:032x}-{number:016x}-{flags}"


def traced(key, waiting, **fields):
    traces = [traceparent(number) for number in range(1, waiting + 1)]
    return state(key, waiting=waiting, idle_s=0.0, traces=traces, **fields)


def reported(*states):
    document = report("gw", SimpleNamespace(states=lambda: list(states)))
    assert len(json.dumps(document)) < 2 << 20  # as much as the operator reads
    return DemandAggregator().record(document, 0.0)


def test_a_report_names_the_first_requests_that_wait_for_a_wake():
    found = reported(traced("a/asleep", 9), traced("a/busy", 9, ready=1), state("a/untraced", waiting=9))
    assert found["a/asleep"].traces == tuple(map(traceparent, (1, 2, 3, 4)))
    assert found["a/busy"].traces == found["a/untraced"].traces == ()


def test_traces_of_models_without_number_leave_the_report_readable():
    found = reported(*(traced(f"{'n' * 63}/{n:063}", 4) for n in range(9_000)))
    assert len(found) == MAX_MODELS
    assert sum(bool(demand.traces) for demand in found.values()) == MAX_TRACED_MODELS


def test_a_tenant_with_models_without_number_keeps_no_other_from_waking():
    many = [state(f"{'n' * 63}/{n:063}", idle_s=float(n % 60) if n % 2 else None) for n in range(20_001)]
    asked = [state("prod/llama", waiting=1, idle_s=0.0), state("prod/qwen", idle_s=0.5)]
    document = report("gw", SimpleNamespace(states=lambda: [*many, *asked]))
    assert len(json.dumps(document)) < 2 << 20  # as much as the operator reads
    recorded = DemandAggregator().record(document, 0.0)
    assert recorded["prod/llama"].waiting == 1
    assert recorded["prod/qwen"].idle_s == 0.5


def test_a_report_says_how_many_pods_get_requests():
    pods = {name: SimpleNamespace(is_ready=name != "starts") for name in ("a", "b", "starts")}
    found = state("default/m", waiting=1)
    found.pods = pods
    document = report("gw", SimpleNamespace(states=lambda: [found]))
    assert DemandAggregator().record(document, 0.0)["default/m"].ready == 2
