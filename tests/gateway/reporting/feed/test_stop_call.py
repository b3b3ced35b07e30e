"""``POST /stop``: the gateway asks, ``wisp up`` does it; refused while requests wait."""

import asyncio

import pytest

from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.demand import DemandReporter
from wisp_gateway.reporting.feed.control import Control
from wisp_gateway.reporting.feed.errors import StillAsked
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.routing.request_queue import QueuedRequest
from wisp_gateway.upstream.pool import Pool
from wisp_gateway.upstream.tokens import Tokens
from wisp_operator.core.access.tokens import TokenKeys, make_keys_file
from wisp_operator.local.gateway.demand_endpoint import DemandServer


@pytest.mark.parametrize(
    ("is_known", "is_ours", "failure"), [(True, True, ""), (False, True, "404"), (True, False, "401")]
)
def test_wisp_up_gets_the_model_and_its_arrivals_from_its_own_gateway_alone(
    tmp_path, is_known, is_ours, failure
):
    keys, others = make_keys_file(tmp_path / "keys"), make_keys_file(tmp_path / "others")
    asked = []

    def stop(key, arrivals):
        asked.append((key, arrivals))
        return is_known

    async def run():
        server = DemandServer(lambda _: None, TokenKeys(keys), stop=stop)
        await server.start()
        pool, metrics = Pool(connect_timeout_s=30), Metrics()
        registry = ModelRegistry(metrics, lambda _: None)
        tokens = Tokens(keys if is_ours else others)
        demand = DemandReporter(server.url, "gw", registry, pool, tokens)
        running = asyncio.create_task(demand.run())
        while not demand.addresses:
            await asyncio.sleep(0.01)
        state = ModelState(Model("default", "m", "m", "Ready"), metrics, lambda: 0.0)
        state.arrive()
        try:
            return await demand.stop(state)
        finally:
            running.cancel()
            pool.close()
            await server.close()

    result = asyncio.run(run())
    assert failure in result
    assert bool(result) == bool(failure)
    assert asked == ([("default/m", 1)] if is_ours else [])


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        (1, "A request waits for model default/m and would wake it again. Stop it when none waits"),
        (2, "2 requests wait for model default/m and would wake it again. Stop it when none waits"),
    ],
)
def test_a_model_that_requests_wait_for_is_not_stopped_and_the_answer_says_when(waiting, message):
    async def stop(state):
        raise AssertionError("asked to stop")

    state = ModelState(Model("default", "m", "m", "Waking", can_stop=True), Metrics(), lambda: 0.0)
    for _ in range(waiting):
        state.admit(QueuedRequest(None, 0.0, 300.0, lambda _: None))
    with pytest.raises(StillAsked, match=message):
        asyncio.run(Control(ModelRegistry(Metrics(), lambda _: None), stop).stop(state))
