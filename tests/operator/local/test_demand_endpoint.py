"""The endpoint of ``wisp up`` for demand, by the contract *Demand* of docs/contracts.md."""

import asyncio

import aiohttp
import pytest

from wisp_gateway.upstream.tokens import Tokens
from wisp_operator.core.access.tokens import TokenKeys, make_keys_file
from wisp_operator.core.demand import MAX_REPORT_BYTES, DemandAggregator
from wisp_operator.local.gateway.demand_endpoint import DemandServer

MIB = 1 << 20
REPORT = b'{"gateway": "%s", "models": {}}'


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (REPORT % b"gw", 204, ""),
        ((REPORT % b"gw").ljust(MIB + MIB // 2), 204, ""),
        ((REPORT % b"gw").ljust(MAX_REPORT_BYTES + 1), 400, f"it has more than {MAX_REPORT_BYTES} bytes"),
        (REPORT % b"other", 401, "this session's gateway alone"),  # the header's token is not for that name
        (b'{"models": {}}', 400, "gateway must be a name"),
        (b"[]", 400, "must be an object"),
        (b"{", 400, ""),
    ],
)
def test_a_report_is_taken_up_to_two_mebibytes_and_from_the_gateway_that_it_names(
    tmp_path, body, status, says
):
    keys = make_keys_file(tmp_path / "keys")
    headers = {name.decode(): value.decode() for name, value in Tokens(keys).for_demand("gw")}

    async def run():
        demand = DemandAggregator()
        server = DemandServer(lambda report: demand.record(report, 0.0), TokenKeys(keys))
        await server.start()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(server.url, data=body, headers=headers) as answer,
            ):
                return answer.status, await answer.text()
        finally:
            await server.close()

    answered, text = asyncio.run(run())
    assert (answered, says in text) == (status, True)
