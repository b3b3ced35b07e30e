"""Discovery on a cluster, with an API server that breaks, forgets, hangs and comes back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager

import fake_apiserver as fake
import pytest
from fake_apiserver import MODELS, SECRETS, SLICES, FakeApiServer, model_object, pod, slice_object

from wisp_gateway.discovery import informer, kubernetes, secret_keys
from wisp_gateway.discovery.api_server import ApiServer
from wisp_gateway.discovery.credentials import Credentials
from wisp_gateway.discovery.kubernetes import KubernetesDiscovery

READY = {"ready": True}


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

    async def until(self, claim, seconds=5.0):
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
                await asyncio.wait_for(scene(server), 20)
            finally:
                await server.stop()

        asyncio.run(run())

    return playing


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
            await asyncio.sleep(0.3)
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


KEYED = {"access": {"apiKeySecretRef": {"name": "keys"}}}


def test_keys_come_from_the_named_secret_and_from_no_other(play, monkeypatch, caplog):
    monkeypatch.setattr("wisp_gateway.discovery.secret_keys.RETRY_S", 0.05)

    async def scene(server):
        server.put(SECRETS, fake.secret_object("other", x="sk-other"))
        server.put(MODELS, model_object(**KEYED))
        async with following(server) as followed:
            await followed.until_endpoints(ns__m=[])

            def keys():
                return followed.discovery.snapshot["ns/m"].keys

            assert keys() == {}  # a missing Secret opens nothing
            assert not followed.discovery.snapshot["ns/m"].are_keys_read
            await followed.until(lambda: any(SECRETS in path for path, _ in server.requests))
            await asyncio.sleep(0.02)
            server.put(SECRETS, fake.secret_object("keys", alice="sk-1", bob="sk-2"))
            await followed.until(lambda: len(keys()) == 2)
            assert followed.discovery.snapshot["ns/m"].are_keys_read
            requested = {path for path, _ in server.requests if SECRETS in path}
            assert requested == {"/api/v1/namespaces/ns/secrets/keys"}
            server.put(MODELS, model_object())
            await followed.until(lambda: keys() is None)

    with caplog.at_level(logging.WARNING):
        play(scene)
    assert "not found" in caplog.text


@pytest.mark.parametrize(
    ("happens", "keys_left"),
    [("deleted", 0), ("forbidden", 1), ("away", 1)],
)
def test_a_secret_that_can_no_longer_be_read(play, monkeypatch, caplog, happens, keys_left):
    monkeypatch.setattr("wisp_gateway.discovery.secret_keys.RETRY_S", 0.02)
    monkeypatch.setattr("wisp_gateway.discovery.secret_keys.PERIOD_S", 0.02)

    async def scene(server):
        server.put(SECRETS, fake.secret_object("keys", alice="sk-1"))
        server.put(MODELS, model_object(**KEYED))
        async with following(server) as followed:
            await followed.until(lambda: followed.discovery.snapshot)
            await followed.until(lambda: followed.discovery.snapshot["ns/m"].keys)
            if happens == "deleted":
                server.drop(SECRETS, "ns/keys")
            elif happens == "forbidden":
                server.forbidden.add(SECRETS)
            else:
                await server.stop()
            await asyncio.sleep(0.3)
            assert len(followed.discovery.snapshot["ns/m"].keys) == keys_left

    with caplog.at_level(logging.WARNING):
        play(scene)
    logged = [message for message in caplog.messages if "ns/keys" in message]
    assert len(logged) == 1
    assert happens != "forbidden" or "kubectl create role " in logged[0]


def test_a_gateway_is_ready_when_each_secret_was_tried_and_reads_them_at_once(play):
    """100 models, 50 ms a Secret: one after the other, valid keys got 401 for 5 s after each start."""

    async def scene(server):
        server.delay_s[SECRETS] = 0.05
        for number in range(100):
            keyed = {"access": {"apiKeySecretRef": {"name": f"keys-{number}"}}}
            server.put(MODELS, model_object(f"m{number}", **keyed))
            server.put(SECRETS, fake.secret_object(f"keys-{number}", alice=f"sk-{number}"))
        async with following(server) as followed:
            await followed.until(lambda: followed.discovery.is_synced, 3.0)
            models = followed.discovery.snapshot.values()
            assert len(models) == 100
            assert all(model.are_keys_read and len(model.keys) == 1 for model in models)

    play(scene)


def test_a_secret_that_does_not_come_delays_readiness_no_longer_than_a_bound(play, monkeypatch):
    monkeypatch.setattr(kubernetes, "SECRETS_WAIT_S", 0.2)

    async def scene(server):
        server.delay_s[SECRETS] = 30.0
        server.put(MODELS, model_object(**KEYED))
        async with following(server) as followed:
            await followed.until(lambda: followed.discovery.is_synced)
            assert not followed.discovery.snapshot["ns/m"].are_keys_read

    play(scene)


def test_secrets_that_cannot_be_read_are_not_asked_for_without_end(play, monkeypatch):
    monkeypatch.setattr("wisp_gateway.discovery.secret_keys.RETRY_S", 0.05)

    async def scene(server):
        server.forbidden.add(SECRETS)
        server.put(MODELS, model_object(**KEYED))
        async with following(server) as followed:
            await followed.until(lambda: followed.discovery.is_synced)
            await asyncio.sleep(1.2)
            tries = sum(SECRETS in path for path, _ in server.requests)
            assert 3 <= tries <= 6  # 24 without back-off

    play(scene)


def test_a_namespace_with_many_secrets_does_not_delay_anothers():
    many = [f"greedy/keys-{number:03}" for number in range(100)]
    assert secret_keys._by_turns([*many, "other/keys"])[:2] == ["greedy/keys-000", "other/keys"]
