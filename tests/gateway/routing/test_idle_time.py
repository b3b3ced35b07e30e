"""Idle time of a model: of requests and of readiness, by a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.introspection import model_state
from wisp_gateway.routing.model_state import ModelState

ASLEEP = Model("default", "m", "m", "Asleep")


def with_pods(*pods):
    """The model with pods of these names; those in capitals drain."""
    endpoints = [
        Endpoint(name, "127.0.0.1:1", ready=name.islower(), draining=name.isupper()) for name in pods
    ]
    return replace(ASLEEP, state="Ready" if pods else "Asleep", endpoints=tuple(endpoints))


@pytest.mark.parametrize(
    ("first", "changes", "asked_s", "idle_s"),
    [
        (ASLEEP, {}, None, None),
        (with_pods("a"), {}, None, None),  # ready since nobody knows when
        (with_pods("a"), {10: with_pods("a")}, None, None),
        (with_pods("a"), {}, 30, 70),
        (ASLEEP, {60: with_pods("a")}, None, 40),  # woken without a request
        (ASLEEP, {60: with_pods("a")}, 30, 40),
        (ASLEEP, {60: with_pods("a")}, 90, 10),
        (with_pods("a"), {60: with_pods("a", "b")}, 30, 40),
        (with_pods("a"), {60: with_pods("a", "b"), 80: with_pods("a", "B")}, 30, 70),  # of pods that stay
        (ASLEEP, {60: with_pods("a"), 80: with_pods()}, 30, 70),
    ],
)
def test_the_idle_time_counts_from_the_last_request_or_from_a_pods_readiness(first, changes, asked_s, idle_s):
    now_s = 0.0
    state = ModelState(first, Metrics(), lambda: now_s)
    state.replace(first)
    for now_s in sorted({*changes, *([] if asked_s is None else [asked_s])}):
        if now_s == asked_s:
            state.arrive()
        if now_s in changes:
            state.replace(changes[now_s])
    now_s = 100.0
    assert model_state(state, "http://gw")["idleSeconds"] == idle_s
    assert state.idle_s == (None if asked_s is None else 100.0 - asked_s)  # of demand: requests alone
