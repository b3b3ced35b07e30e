"""The operator's port under connections that send nothing, too slowly, or read nothing."""

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest

from wisp_operator.cluster import connections
from wisp_operator.cluster.endpoints import Endpoints
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.demand import DemandAggregator

HEAD = b"GET /metrics HTTP/1.1\r\nhost: x\r\n"


@asynccontextmanager
async def operators_port():
    """Address of the endpoints of a healthy leader."""
    endpoints = Endpoints(
        demand=DemandAggregator(),
        tokens=TokenKeys(None),
        leader=SimpleNamespace(is_leader=True, address=""),
        metrics=Metrics(),
        on_demand=lambda _: None,
        liveness_problem=lambda: "",
        readiness_problem=lambda: "",
    )
    await endpoints.start("127.0.0.1", 0)
    host, port = endpoints.address
    try:
        yield f"{host}:{port}"
    finally:
        await endpoints.close()


async def get(address, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, await answer.text()


async def opened(address, sent=b""):
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def is_cut_off(reader, within_s):
    """Whether the server ends the connection in time."""
    try:
        async with asyncio.timeout(within_s):
            while await reader.read(65536):
                pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /metr",
        HEAD,
        HEAD + b"\r\n",  # answered, and then silent
        b"POST /demand HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half a head", "one request", "half a body"],
)
def test_a_silent_connection_is_cut_off(monkeypatch, sent):
    monkeypatch.setattr(connections, "MAX_SILENCE_S", 0.3)

    async def scenario():
        async with operators_port() as address:
            reader, writer = await opened(address, sent)
            assert await is_cut_off(reader, 60)
            writer.close()

    asyncio.run(scenario())


def test_a_connection_with_requests_is_kept(monkeypatch):
    monkeypatch.setattr(connections, "MAX_SILENCE_S", 2.0)

    async def scenario():
        async with operators_port() as address:
            reader, writer = await opened(address)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b" 200 " in await reader.readline()
                while not (await reader.readline()).startswith(b"ok"):
                    pass
                await asyncio.sleep(0.1)
            writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("bound", ["MAX_OF_ADDRESS", "MAX_CONNECTIONS"])
def test_probes_are_answered_beside_more_silent_connections_than_there_may_be(monkeypatch, bound):
    monkeypatch.setattr(connections, bound, 8)

    async def scenario():
        async with operators_port() as address:
            kept, kept_writer = await opened(address)
            silent = []
            for _ in range(20):
                silent.append(await opened(address, HEAD))
                kept_writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b" 200 " in await kept.readline()
                while not (await kept.readline()).startswith(b"ok"):
                    pass
            assert await get(address, "/livez") == (200, "ok\n")
            ends = [await is_cut_off(reader, 0.05) for reader, _ in silent]
            assert sum(ends) >= 12
            assert ends[0]
            assert not ends[-1]
            for _, writer in [*silent, (kept, kept_writer)]:
                writer.close()

    asyncio.run(scenario())


def test_a_head_of_many_kilobytes_is_refused():
    async def scenario():
        async with operators_port() as address:
            reader, writer = await opened(address, HEAD + b"a: " + b"x" * 4096 + b"\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()

    asyncio.run(scenario())
