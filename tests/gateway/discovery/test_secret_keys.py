"""Keys of models from Secrets: the named ones alone, all at once, and never in the way of others."""

from __future__ import annotations

import asyncio
import logging
import time

import fake_apiserver as fake
import pytest
from fake_apiserver import MODELS, SECRETS, model_object
from followed_cluster import following

from wisp_gateway.discovery import kubernetes, secret_keys

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
            await followed.until(lambda: any("ns/keys" in message for message in caplog.messages))
            await asyncio.sleep(0.3)  # several tries
            assert len(followed.discovery.snapshot["ns/m"].keys) == keys_left

    with caplog.at_level(logging.WARNING):
        play(scene)
    logged = [message for message in caplog.messages if "ns/keys" in message]
    assert len(logged) == 1
    assert happens != "forbidden" or "kubectl create role " in logged[0]


def test_a_gateway_is_ready_when_each_secret_was_tried_and_reads_them_at_once(play, monkeypatch):
    """100 models, 0.3 s a Secret: one after the other, valid keys would get 401 for half a minute."""
    monkeypatch.setattr(kubernetes, "SECRETS_WAIT_S", 60.0)

    async def scene(server):
        server.delay_s[SECRETS] = 0.3
        for number in range(100):
            keyed = {"access": {"apiKeySecretRef": {"name": f"keys-{number}"}}}
            server.put(MODELS, model_object(f"m{number}", **keyed))
            server.put(SECRETS, fake.secret_object(f"keys-{number}", alice=f"sk-{number}"))
        async with following(server) as followed:
            await followed.until(lambda: followed.discovery.is_synced, 20.0)
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
            began_s = time.monotonic()
            await asyncio.sleep(1.2)
            await followed.until(lambda: sum(SECRETS in path for path, _ in server.requests) >= 3)
            tries = sum(SECRETS in path for path, _ in server.requests)
            assert tries < (time.monotonic() - began_s) / 0.05 / 2  # of those without back-off; 5, in fact

    play(scene)


def test_a_namespace_with_many_secrets_does_not_delay_anothers():
    many = [f"greedy/keys-{number:03}" for number in range(100)]
    assert secret_keys._by_turns([*many, "other/keys"])[:2] == ["greedy/keys-000", "other/keys"]


def test_values_that_cannot_be_read_are_one_line_of_the_log_until_these_change(play, monkeypatch, caplog):
    monkeypatch.setattr("wisp_gateway.discovery.secret_keys.PERIOD_S", 0.02)
    bad = {f"bad{number}": "sk rpm=x" for number in range(9)}

    async def scene(server):
        def reads():
            return sum(SECRETS in path for path, _ in server.requests)

        async def read_again(count, keys):
            seen = reads()
            await followed.until(lambda: reads() >= seen + count)
            await followed.until(lambda: len(followed.discovery.snapshot["ns/m"].keys) == keys)

        server.put(SECRETS, fake.secret_object("keys", alice="sk-1", **bad))
        server.put(MODELS, model_object(**KEYED))
        async with following(server) as followed:
            await followed.until(lambda: followed.discovery.snapshot)
            await followed.until(lambda: followed.discovery.snapshot["ns/m"].keys)
            await read_again(5, keys=1)
            server.put(SECRETS, fake.secret_object("keys", alice="sk-1", bob="sk-2", **bad))
            await read_again(5, keys=2)
            server.put(SECRETS, fake.secret_object("keys", alice="sk-1 tpm=0", **bad))
            await read_again(5, keys=0)

    with caplog.at_level(logging.WARNING):
        play(scene)
    first, second = (message for message in caplog.messages if "Secret ns/keys" in message)
    assert first.startswith("API keys in Secret ns/keys, value bad0: 'rpm' must be an integer")
    assert "; and 4 more. These keys open nothing until that is mended" in first
    assert "value alice: 'tpm' must be" in second
