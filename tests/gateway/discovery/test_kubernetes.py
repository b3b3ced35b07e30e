"""Discovery on a cluster, with an API server that breaks, forgets, hangs and comes back."""

from __future__ import annotations

import asyncio
import logging

import pytest
from fake_apiserver import MODELS, SLICES, FakeApiServer, model_object, pod, slice_object
from followed_cluster import following

from wisp_gateway.discovery import informer

READY = {"ready": True}


def test_models_and_pods_come_change_and_go(play):
    async def scene(server):
        for number in range(5):  # three pages of two
            server.put(MODELS, model_object(f"m{number}"))
        server.put(SLICES, slice_object(pod("a", ready=False), model="m0"))
        async with following(server) as followed:
            await followed.until_endpoints(ns__m0=["a-"], ns__m1=[], ns__m2=[], ns__m3=[], ns__m4=[])
            assert len(followed.snapshots) == 2  # the empty one, and all at once
            server.put(SLICES, slice_object(pod("a", **READY), pod("b", ready=False), model="m0"))
            await followed.until_endpoints(ns__m0=["a", "b-"], ns__m1=[], ns__m2=[], ns__m3=[], ns__m4=[])
            for number in range(1, 5):
                server.drop(MODELS, f"ns/m{number}")
            server.drop(SLICES, "ns/m-1")
            await followed.until_endpoints(ns__m0=[])
            assert server.count(MODELS, watch=False) == 1

    play(scene)


def test_an_empty_cluster_is_a_snapshot_too(play):
    async def scene(server):
        async with following(server) as followed:
            assert not followed.discovery.is_synced
            await followed.until_endpoints()

    play(scene)


def test_nothing_is_published_before_both_lists_were_read(play):
    async def scene(server):
        server.put(MODELS, model_object())
        server.put(SLICES, slice_object(pod("a", **READY)))
        server.forbidden.add(SLICES)
        async with following(server) as followed:
            await followed.until(lambda: server.count(SLICES, watch=False) > 2)
            assert (followed.discovery.is_synced, followed.endpoints()) == (False, {})
            server.forbidden.clear()
            await followed.until_endpoints(ns__m=["a"])

    play(scene)


async def _break(server):
    await server.end_watches()


async def _expire(server):
    server.forget_history()
    await server.end_watches()


async def _restart(server):
    await server.stop()
    await asyncio.sleep(0.1)
    await server.start()


async def _window_ends(server):
    await asyncio.sleep(1.2)


@pytest.mark.parametrize(
    ("happens", "lists"),
    [
        (_window_ends, 1),  # continued where it was, nothing is listed again
        (_break, 2),
        (_expire, 2),  # 410 Gone would cost one more list, had the watch gone on from its old version
        (_restart, 2),
    ],
)
def test_whatever_ends_a_watch_no_change_is_missed(play, happens, lists):
    async def scene(server):
        server.put(MODELS, model_object("m"))
        server.put(MODELS, model_object("gone"))
        async with following(server) as followed:
            await followed.until_endpoints(ns__m=[], ns__gone=[])
            await followed.until(lambda: server.open_watches == 2)
            changing = asyncio.ensure_future(happens(server))
            await asyncio.sleep(0.05)
            server.drop(MODELS, "ns/gone")
            server.put(SLICES, slice_object(pod("a", **READY)))
            await changing
            await followed.until_endpoints(ns__m=["a"])
            server.put(MODELS, model_object("late"))
            await followed.until_endpoints(ns__m=["a"], ns__late=[])
            assert server.count(MODELS, watch=False) == lists

    play(scene)


def test_a_version_that_is_too_old_is_listed_anew_without_a_warning(play, caplog):
    async def scene(server):
        async with following(server) as followed:
            await followed.until_endpoints()
            server.sends_bookmarks = False
            server.forget_history()
            await followed.until(lambda: server.count(MODELS, watch=False) > 1)
            server.put(MODELS, model_object())
            await followed.until_endpoints(ns__m=[])

    with caplog.at_level(logging.WARNING):
        play(scene)
    assert caplog.messages == []


def test_while_the_api_server_is_away_the_last_good_snapshot_stays(play, caplog):
    async def scene(server):
        server.put(MODELS, model_object())
        server.put(SLICES, slice_object(pod("a", **READY)))
        async with following(server) as followed:
            await followed.until_endpoints(ns__m=["a"])
            await server.stop()
            await followed.until(lambda: any("last good copy" in message for message in caplog.messages))
            await asyncio.sleep(0.3)  # several tries
            assert followed.discovery.is_synced
            assert followed.endpoints() == {"ns/m": ["a"]}
            await server.start()
            server.drop(SLICES, "ns/m-1")
            await followed.until_endpoints(ns__m=[])
            await followed.until(lambda: server.open_watches == 2)

    with caplog.at_level(logging.INFO):
        play(scene)
    logged = [message for message in caplog.messages if MODELS in message]
    assert len(logged) == 2  # gone, and back; not once for each attempt
    assert "keeping the last good copy" in logged[0]
    assert "answers again" in logged[1]


def test_a_silent_watch_is_detected(play, monkeypatch):
    monkeypatch.setattr(informer, "GRACE_S", 0.2)

    async def scene(server):
        async with following(server) as followed:
            await followed.until_endpoints()
            server.put(MODELS, model_object())
            await followed.until_endpoints(ns__m=[])

    monkeypatch.setattr(FakeApiServer, "_stream", _hang)
    play(scene)


async def _hang(self, resource, request, answer, version):
    """Send neither an event nor an end, as through a dead node."""
    try:
        await asyncio.sleep(30)
    except (asyncio.CancelledError, TimeoutError):
        await asyncio.sleep(30)


def test_a_token_that_was_renewed_counts_at_once(play):
    async def scene(server):
        async with following(server) as followed:
            await followed.until_endpoints()
            server.token = followed.token = "second"
            await server.end_watches()
            server.put(MODELS, model_object())
            await followed.until_endpoints(ns__m=[])

    play(scene)


def test_only_the_namespaces_asked_for_are_read(play):
    async def scene(server):
        for namespace in ("a", "b", "c"):
            server.put(MODELS, model_object(namespace=namespace))
            server.put(SLICES, slice_object(pod(f"in-{namespace}", **READY), namespace=namespace))
        async with following(server, "a", "b") as followed:
            await followed.until_endpoints(a__m=["in-a"], b__m=["in-b"])
            assert all("/namespaces/" in path for path, _ in server.requests)

    play(scene)


def test_an_object_that_cannot_be_read_hides_no_other(play, caplog):
    async def scene(server):
        server.put(MODELS, model_object("bad", coldStart={"maxWait": "soon"}))
        server.put(MODELS, model_object("good"))
        async with following(server) as followed:
            await followed.until_endpoints(ns__good=[])
            server.put(MODELS, model_object("bad"))
            await followed.until_endpoints(ns__bad=[], ns__good=[])

    with caplog.at_level(logging.WARNING):
        play(scene)
    assert [
        message for message in caplog.messages if "ns/bad" in message and "spec.coldStart.maxWait" in message
    ]


def test_an_object_that_no_rule_foresaw_hides_no_other(play, caplog):
    async def scene(server):
        bad = slice_object(pod("p"), model="bad", name="bad-1")
        bad["endpoints"] = [{"addresses": 5}]
        server.put(SLICES, bad)
        server.put(MODELS, model_object("good"))
        server.put(SLICES, slice_object(pod("a", **READY), model="good"))
        async with following(server) as followed:
            await followed.until_endpoints(ns__good=["a"])

    play(scene)
    assert "ns/bad-1 is left out" in caplog.text


def test_a_model_of_the_same_name_elsewhere_gets_only_its_own_pods(play):
    async def scene(server):
        server.put(MODELS, model_object(namespace="a"))
        server.put(MODELS, model_object(namespace="b"))
        server.put(SLICES, slice_object(pod("pa", **READY), namespace="a"))
        server.put(SLICES, slice_object(pod("pb", **READY), namespace="b", name="x"))
        async with following(server) as followed:
            await followed.until_endpoints(a__m=["pa"], b__m=["pb"])

    play(scene)
