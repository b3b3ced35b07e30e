"""The end of ``wisp up``: nothing stays behind, also where one part cannot be ended."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from wisp_operator.core.fit.verdict import FitReport, FitResult
from wisp_operator.local.gateway.process import GatewayProcess
from wisp_operator.local.manifest_files import ManifestFiles
from wisp_operator.local.processes.cluster import LocalCluster
from wisp_operator.local.session import Options, Session

SLEEPS = """
apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata: {name: chat}
spec: {model: {uri: hf://org/name}, gpu: {count: 0}, suspend: true}
"""


async def not_asked(_):
    return FitResult(FitReport("Unknown", "not asked"))


async def nothing(*_):
    return None


async def refused(*_):
    raise PermissionError("no right to end it")


def test_pods_and_the_demand_endpoint_end_though_the_gateway_cannot_be_ended(tmp_path, monkeypatch):
    closed, close = [], LocalCluster.close

    async def records(self, grace_s):
        closed.append(grace_s)
        await close(self, grace_s)

    for method, stub in (("start", nothing), ("watch", nothing), ("stop", refused), ("hurry", refused)):
        monkeypatch.setattr(GatewayProcess, method, stub)
    monkeypatch.setattr(LocalCluster, "close", records)
    manifest = tmp_path / "chat.yaml"
    manifest.write_text(SLEEPS)

    async def scenario():
        session = Session(Options(), ManifestFiles([manifest]), tmp_path, not_asked)
        running = session.running()
        await running.__aenter__()
        address = urlsplit(session._demand.url)
        socket.create_connection((address.hostname, address.port)).close()
        with pytest.raises(PermissionError, match="no right to end it"):
            await running.__aexit__(None, None, None)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.hostname, address.port))

    asyncio.run(scenario())
    assert closed == [0.0]
