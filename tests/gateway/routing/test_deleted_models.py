"""Requests that find their model, and begin a moment after it was deleted or created again."""

from __future__ import annotations

import asyncio
import time

import pytest

from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.errors import ModelNotFound
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.upstream.proxy import Proxy, Request
from wisp_gateway.upstream.tokens import Tokens

ASLEEP = Model("ns", "m", "m", "Asleep")
READY = Model("ns", "m", "m", "Ready", endpoints=(Endpoint("new", "127.0.0.1:1", ready=True),))


class Body:
    """A request's body, whatever model it is asked by."""

    def named(self, _):
        return b"{}"


class Pods:
    """A pool whose pods all answer; keeps their addresses."""

    def __init__(self):
        self.asked = []

    async def exchange(self, address, _head, _body):
        self.asked.append(address)
        return self

    status = 200

    def header(self, _):
        return b""


@pytest.fixture
def registry():
    registry = ModelRegistry(Metrics(), lambda _: None)
    registry.update({"ns/m": ASLEEP})
    return registry


def found(registry):
    """The model's routing state, or what a client gets without one."""
    state = registry.find("ns/m")
    if state is None:
        raise ModelNotFound("gone")
    return state


def begin(registry, pods, state):
    """Begin a request for a state that was found before."""
    proxy = Proxy(registry, pods, Metrics(), Tokens(None), 1 << 20)
    request = Request("/v1", [], Body(), None, False, time.monotonic(), lambda: found(registry))
    return asyncio.run(asyncio.wait_for(proxy._open(state, request), 2))


def test_a_request_for_a_model_that_is_gone_is_refused_at_once(registry):
    state = found(registry)
    registry.update({})
    with pytest.raises(ModelNotFound):
        begin(registry, Pods(), state)


def test_a_request_for_a_model_that_was_created_again_goes_to_the_new_one(registry):
    state, pods = found(registry), Pods()
    registry.update({})
    registry.update({"ns/m": READY})
    current, slot, _ = begin(registry, pods, state)
    assert (current, pods.asked) == (found(registry), ["127.0.0.1:1"])
    slot.release()


def test_no_request_is_queued_for_a_model_that_is_gone(registry):
    state = found(registry)
    registry.update({})
    with pytest.raises(ModelNotFound):
        asyncio.run(asyncio.wait_for(registry.acquire_slot(state, None, entered_s=time.monotonic()), 2))
