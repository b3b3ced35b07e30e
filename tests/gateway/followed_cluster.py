"""A running discovery of a fake cluster, and every snapshot that it published."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from wisp_gateway.discovery.api_server import ApiServer
from wisp_gateway.discovery.credentials import Credentials
from wisp_gateway.discovery.kubernetes import KubernetesDiscovery


class Followed:
    """A running KubernetesDiscovery and every snapshot it published."""

    def __init__(self, server, *namespaces):
        self.server = server
        self.token = server.token
        credentials = Credentials(server.url, lambda: self.token, lambda: True)
        self.discovery = KubernetesDiscovery(ApiServer(credentials), namespaces)
        self.snapshots = []
        self.discovery.watch(self.snapshots.append)

    def endpoints(self):
        """Return every model's endpoints; a ``-`` marks those that are not ready."""
        return {
            key: [f"{pod.id}{'' if pod.ready else '-'}" for pod in model.endpoints]
            for key, model in self.discovery.snapshot.items()
        }

    async def until(self, claim, seconds=60.0):
        async with asyncio.timeout(seconds):
            while not claim():
                await asyncio.sleep(0.005)

    async def until_endpoints(self, **expect):
        expect = {key.replace("__", "/"): value for key, value in expect.items()}
        try:
            await self.until(lambda: self.discovery.is_synced and self.endpoints() == expect)
        except TimeoutError:
            raise AssertionError(f"{self.endpoints()} is not {expect}") from None


@asynccontextmanager
async def following(server, *namespaces):
    followed = Followed(server, *namespaces)
    running = asyncio.ensure_future(followed.discovery.run())
    try:
        yield followed
    finally:
        running.cancel()
        await asyncio.wait([running])
