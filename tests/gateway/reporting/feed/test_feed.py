"""The feed itself: who polls, and what a read leaves as it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from wisp_gateway.config import Config
from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.feed.feed import Feed
from wisp_gateway.routing.registry import ModelRegistry

LOADING = {"name": "weights", "seconds": 0.5, "state": "running", "bytes": 62, "totalBytes": 100}


def feed_of_a_waking_model():
    endpoint = Endpoint("m-1", "127.0.0.1:1", ready=False, draining=False)
    registry = ModelRegistry(Metrics(), lambda _: None)
    registry.update({"default/m": Model("default", "m", "m", "Waking", endpoints=(endpoint,))})
    return Feed(Config(Path("unused.json")), registry, fetch), registry.states()[0]


async def fetch(key, address):
    return json.dumps({"phases": [LOADING]}).encode()


def test_a_poll_finds_the_phase_of_a_starting_pod_and_no_read_of_the_state_changes_it():
    async def run():
        feed, state = feed_of_a_waking_model()
        seen = [state.activity]
        subscriber = feed.open(None, "host:a")
        feed.poll()
        for _ in range(5):
            await asyncio.sleep(0)  # the pod is read
        document = feed.state(None)["models"][0]
        seen.append(state.activity)
        feed.poll()
        seen.append(state.activity)
        feed.remove(subscriber)
        seen.append(state.activity)
        state.observed_phase = ("kernels", None)
        feed.state(None)
        seen.append(state.activity)
        return document["phase"], seen

    phase, seen = asyncio.run(run())
    assert phase == "weights"
    assert seen == ["waking", "waking", "waking weights 62 %", "waking", "waking kernels"]
