"""Scenes with an API server that breaks, forgets, hangs and comes back."""

from __future__ import annotations

import asyncio

import pytest
from fake_apiserver import FakeApiServer

from wisp_gateway.discovery import informer


@pytest.fixture
def play(monkeypatch):
    """Run a scene with an API server in a loop of its own; back-off and windows are short."""
    monkeypatch.setattr(informer, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(informer, "WINDOW_S", 1)

    def playing(scene):
        async def run():
            server = FakeApiServer()
            await server.start()
            try:
                await asyncio.wait_for(scene(server), 60)
            finally:
                await server.stop()

        asyncio.run(run())

    return playing
