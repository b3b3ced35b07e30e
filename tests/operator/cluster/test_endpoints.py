"""The operator's own port: demand taken by every replica, passed on to the leader; probes and metrics."""

import asyncio
import hashlib
import hmac
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest

from wisp_operator.cluster.endpoints import Endpoints
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.core.access.tokens import GATEWAY_HEADER, HEADER, TokenKeys, make_keys_file
from wisp_operator.core.demand import MAX_REPORT_BYTES, DemandAggregator

WAITS = {"waiting": 1, "running": 0, "arrivals": 1, "idleSeconds": 0.0}
SLEEPS = {"waiting": 0, "running": 0, "arrivals": 1, "idleSeconds": 60.0}
REJECTED = {"waiting": 0, "running": 0, "arrivals": 2, "idleSeconds": 0.5}


def report(**models):
    return {"gateway": "g", "models": {f"a/{name}": told for name, told in models.items()}}


@asynccontextmanager
async def replica(*, leads, leader_address="", liveness_problem="", readiness_problem="", keys=None):
    """One replica's endpoints on a free port: its URL, the keys it on_demand of, and its demand."""
    on_demand, demand = [], DemandAggregator()
    endpoints = Endpoints(
        demand=demand,
        tokens=TokenKeys(keys),
        leader=SimpleNamespace(is_leader=leads, address=leader_address),
        metrics=Metrics(),
        on_demand=on_demand.append,
        liveness_problem=lambda: liveness_problem,
        readiness_problem=lambda: readiness_problem,
    )
    await endpoints.start("127.0.0.1", 0)
    host, port = endpoints.address
    try:
        yield SimpleNamespace(address=f"{host}:{port}", on_demand=on_demand, demand=demand)
    finally:
        await endpoints.close()


async def post(address, body, headers=None):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}/demand", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def get(address, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("body", "on_demand"),
    [
        (report(chat=WAITS), ["a/chat"]),
        (report(chat=SLEEPS), []),
        (report(chat=REJECTED), ["a/chat"]),  # waits nowhere, and is demand all the same
        (report(chat=WAITS, other=SLEEPS), ["a/chat"]),
    ],
)
def test_the_leader_enqueues_models_with_demand(body, on_demand):
    async def scenario():
        async with replica(leads=True) as leader:
            assert (await post(leader.address, body))[0] == 204
            assert leader.on_demand == on_demand

    asyncio.run(scenario())


def test_a_follower_keeps_demand_and_passes_it_on_once():
    async def scenario():
        async with (
            replica(leads=True) as leader,
            replica(leads=False, leader_address=leader.address) as follower,
        ):
            assert (await post(follower.address, report(chat=WAITS)))[0] == 204
            assert leader.on_demand == ["a/chat"]
            assert follower.on_demand == []
            assert follower.demand.total("a/chat", 0.0).waiting == 1  # known at once if it must take over

    asyncio.run(scenario())


def test_two_replicas_that_take_each_other_for_the_leader_do_not_ask_each_other_for_ever():
    async def scenario():
        async with (
            replica(leads=False) as first,
            replica(leads=False, leader_address=first.address) as second,
        ):
            assert (await post(second.address, report(chat=WAITS)))[0] == 204

    asyncio.run(scenario())


@pytest.mark.parametrize("leader", ["", "127.0.0.1:1"])
def test_a_gateway_gets_503_when_no_replica_acts_on_its_demand(leader):
    async def scenario():
        async with replica(leads=False, leader_address=leader) as follower:
            assert (await post(follower.address, report(chat=WAITS)))[0] == 503

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body", [{}, {"gateway": "g"}, {"gateway": "g", "models": {"a/chat": {}}}, [], "text"]
)
def test_a_report_that_is_none_is_refused_with_the_reason(body):
    async def scenario():
        async with replica(leads=True) as leader:
            status, text = await post(leader.address, body)
            assert status == 400
            assert "not a demand report" in text

    asyncio.run(scenario())


def entry(**changes):
    return {"gateway": "g", "models": {"a/chat": {**WAITS, **changes}}}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(entry(waiting=-1)),
        json.dumps(entry(waiting=1.5)),
        json.dumps(entry(waiting=True)),
        json.dumps(entry(waiting="1")),
        json.dumps(entry(waiting=10**7)),  # status.queue is an int32, and so must a sum of them be
        json.dumps(entry(waiting=10**400)),
        json.dumps(entry()).replace('"running": 0', '"running": 1e400'),
        json.dumps(entry(idleSeconds=float("nan"))),
        json.dumps(entry(idleSeconds=float("inf"))),
        json.dumps(entry(idleSeconds=-1)),
        json.dumps(entry(traces=None)),
        json.dumps(entry(traces="00-1")),
        json.dumps(entry(traces=[f"00-{1:032x}-{1:016x}-01"] * 5)),
        json.dumps(entry(traces=[f"00-{1:032x}-{1:016x}-00"])),  # not sampled
        json.dumps(entry(traces=[f"00-{0:032x}-{1:016x}-01"])),
        json.dumps(entry(traces=[f"00-{1:032x}-{1:016x}-01\n"])),
        json.dumps(entry(traces=[1])),
        json.dumps({"gateway": "g" * 1000, "models": {}}),
        json.dumps({"gateway": None, "models": {}}),
        json.dumps({"gateway": "g", "models": {"x" * 1000: WAITS}}),
        json.dumps({"gateway": "g", "models": {f"a/m{n}": WAITS for n in range(10_001)}}),
        json.dumps({"gateway": "g", "models": [WAITS]}),
        " " * (MAX_REPORT_BYTES - 1) + "{}",
        "[" * 100_000,
        '{"gateway":' * 100_000,
        "\xff",
    ],
)
def test_numbers_and_names_without_measure_are_refused_and_change_nothing(body):
    async def scenario():
        async with replica(leads=True) as leader, aiohttp.ClientSession() as session:
            async with session.post(f"http://{leader.address}/demand", data=body) as answer:
                assert answer.status == 400
            assert leader.on_demand == []
            assert leader.demand.total("a/chat", 0.0).waiting == 0
            assert (await post(leader.address, report(chat=WAITS)))[0] == 204

    asyncio.run(scenario())


def test_gateways_without_number_do_not_displace_those_that_report():
    aggregator = DemandAggregator()
    for n in range(256):
        aggregator.record({"gateway": f"g{n}", "models": {"a/chat": WAITS}}, 0.0)
    with pytest.raises(ValueError, match="256 other gateways"):
        aggregator.record({"gateway": "one-more", "models": {"a/chat": WAITS}}, 1.0)
    aggregator.record({"gateway": "g0", "models": {"a/chat": SLEEPS}}, 1.0)
    assert aggregator.total("a/chat", 1.0).waiting == 255
    aggregator.record({"gateway": "later", "models": {"a/chat": WAITS}}, 20.0)  # the others fell silent
    assert aggregator.total("a/chat", 20.0).waiting == 1


def test_probes_say_what_is_wrong():
    async def scenario():
        async with replica(
            leads=False, liveness_problem="the watch of Pod is dead", readiness_problem=""
        ) as found:
            assert await get(found.address, "/livez") == (503, "the watch of Pod is dead\n")
            assert await get(found.address, "/readyz") == (200, "ok\n")
            assert "wisp_operator_api_calls_total" in (await get(found.address, "/metrics"))[1]

    asyncio.run(scenario())


def proof(keys, gateway="g"):
    """The headers of a gateway that holds these keys."""
    key = keys.read_text().split()[0]
    token = hmac.new(key.encode(), f"demand:{gateway}".encode(), hashlib.sha256).hexdigest()
    return {GATEWAY_HEADER: gateway, HEADER: token}


@pytest.mark.parametrize(
    ("forge", "status"),
    [
        (lambda sent: sent, 204),
        (lambda sent: {}, 401),
        (lambda sent: sent | {HEADER: ""}, 401),
        (lambda sent: sent | {HEADER: "0" * 64}, 401),
        (lambda sent: sent | {HEADER: "\u00e9"}, 401),
        (lambda sent: sent | {GATEWAY_HEADER: "another"}, 401),  # another gateway's token
    ],
)
def test_demand_counts_only_with_the_token_of_a_gateway(tmp_path, forge, status):
    keys = make_keys_file(tmp_path / "keys")

    async def scenario():
        async with (
            replica(leads=True, keys=keys) as leader,
            replica(leads=False, leader_address=leader.address, keys=keys) as follower,
        ):
            for address in (leader.address, follower.address):
                assert (await post(address, report(chat=WAITS), forge(proof(keys))))[0] == status
            assert leader.on_demand == (["a/chat"] * 2 if status == 204 else [])
            assert leader.demand.total("a/chat", 0.0).waiting == (1 if status == 204 else 0)

    asyncio.run(scenario())


def test_a_gateway_cannot_report_under_the_name_of_another(tmp_path):
    keys = make_keys_file(tmp_path / "keys")

    async def scenario():
        async with replica(leads=True, keys=keys) as leader:
            assert (await post(leader.address, report(chat=WAITS) | {"gateway": "h"}, proof(keys)))[0] == 401
            assert leader.on_demand == []

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [[], "x", {"gateway": "g"}, {"gateway": "g", "models": {"a": 1}}])
def test_a_report_that_is_none_is_refused_in_words(tmp_path, body):
    keys = make_keys_file(tmp_path / "keys")

    async def scenario():
        async with replica(leads=True, keys=keys) as leader:
            status, text = await post(leader.address, body, proof(keys))
            assert (status, "not a demand report" in text) == (400, True)

    asyncio.run(scenario())
