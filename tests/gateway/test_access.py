"""Rights of an API key, and what a caller without one learns: nothing that is not open to everybody."""

from __future__ import annotations

import socket
from dataclasses import replace

import httpx
import pytest

from wisp_gateway.access import Access
from wisp_gateway.discovery.key_digests import Key, digest
from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.errors import KeysUnread, ModelNotFound, Unauthorized
from wisp_gateway.inbound.auth import Keyring
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.routing.response_ids import pod_tag

HOST = "10.0.0.9"
TEAM = {digest("sk-team"): Key("team"), digest("sk-fast"): Key("fast.high", "high")}
CLOSED = Model("prod", "secret", "secret", "Ready", keys=TEAM)
OTHER = Model("prod", "other", "other", "Ready", keys={digest("sk-other"): Key()})
OPEN = Model("prod", "open", "open", "Ready")
UNREAD = Model("prod", "unread", "unread", "Ready", keys={}, are_keys_read=False)


def access(*models, keys=None, is_loopback_trusted=False):
    registry = ModelRegistry(Metrics(), lambda state: None)
    registry.update({model.key: model for model in models})
    return Access(registry, Keyring(keys), is_loopback_trusted=is_loopback_trusted)


def refusal(call, token, *arguments, host=HOST):
    """Return the class and text of a refusal, the model's name left out; None: it was granted."""
    try:
        call(call.__self__.caller(token, host), *arguments)
    except (KeysUnread, ModelNotFound, Unauthorized) as error:
        return type(error), error.message.replace("prod/", "").replace("secret", "_").replace("absent", "_")
    return None


@pytest.mark.parametrize("token", ["", "wrong", "sk-other"])
@pytest.mark.parametrize("by_path", [True, False])
def test_a_model_that_a_key_does_not_open_and_one_that_is_not_there_look_alike(token, by_path):
    decides = access(CLOSED, OTHER, OPEN)
    answers = {
        refusal(decides.model, token, *((f"prod/{name}", None) if by_path else (None, name)))
        for name in ("secret", "absent")
    }
    assert len(answers) == 1
    assert None not in answers
    listed = {refusal(decides.models, token, f"prod/{name}") for name in ("secret", "absent")}
    assert listed == answers or not by_path


@pytest.mark.parametrize(
    ("models", "token", "name", "expect"),
    [
        ((OPEN,), "", "open", "normal"),
        ((OPEN,), "any", "open", "normal"),
        ((OPEN,), "", "absent", ModelNotFound),  # nothing is closed, so nothing is hidden
        ((OPEN, CLOSED), "", "open", "normal"),
        ((OPEN, CLOSED), "", "absent", Unauthorized),
        ((OPEN, CLOSED), "sk-team", "absent", ModelNotFound),
        ((CLOSED,), "sk-team", "secret", "normal"),
        ((CLOSED,), "sk-fast", "secret", "high"),
        ((CLOSED, OTHER), "sk-other", "secret", ModelNotFound),
        ((CLOSED,), "", "secret", Unauthorized),
        ((UNREAD,), "sk-team", "unread", KeysUnread),  # a 401 is final for an SDK, a 503 is tried again
        ((UNREAD, OTHER), "sk-other", "unread", KeysUnread),
        ((UNREAD, OTHER), "sk-other", "other", "normal"),
    ],
)
def test_a_key_gives_a_priority_or_a_refusal(models, token, name, expect):
    decides = access(*models)
    if isinstance(expect, str):
        assert decides.model(decides.caller(token, HOST), None, name).key.priority == expect
        return
    with pytest.raises(expect):
        decides.model(decides.caller(token, HOST), None, name)


NAMES = ("smollm2", "qwen3-8b", "embed", "Qwen/Reranker", "e", "f")
ALL_OPEN = [Model("default", f"m{index}", name, "Ready") for index, name in enumerate(NAMES)]


@pytest.mark.parametrize(
    ("models", "name", "says"),
    [
        (ALL_OPEN, "SmolLM2", "Did you mean 'smollm2'?"),
        (ALL_OPEN, "HuggingFaceTB/smollm2", "Did you mean 'smollm2'?"),
        (ALL_OPEN, "qwen3", "Did you mean 'qwen3-8b'?"),
        (ALL_OPEN, "reranker", "Did you mean 'Qwen/Reranker'?"),
        (ALL_OPEN[:2], "gpt-4o", "There are 'smollm2', 'qwen3-8b'."),
        (ALL_OPEN, "gpt-4o", "'e' and 1 more, which GET /v1/models lists."),
        (ALL_OPEN[:1], "", "There are 'smollm2'."),
        ([], "gpt-4o", "No model is served here yet."),
    ],
)
def test_where_no_key_is_needed_a_wrong_name_is_answered_with_the_right_ones(models, name, says):
    decides = access(*models)
    with pytest.raises(ModelNotFound) as refused:
        decides.model(decides.caller("", HOST), None, name)
    assert says in refused.value.message
    assert "key" not in refused.value.message


def test_where_keys_are_needed_a_wrong_name_is_answered_with_none():
    decides = access(*ALL_OPEN, CLOSED)
    with pytest.raises(ModelNotFound) as refused:
        decides.model(decides.caller("sk-team", HOST), None, "SmolLM2")
    assert "or not for this key" in refused.value.message
    assert "'smollm2'" not in refused.value.message


@pytest.mark.parametrize(
    ("models", "token", "is_refused"),
    [
        ((CLOSED, OTHER), "wrong", True),
        ((CLOSED, OTHER), "", True),
        ((CLOSED, OTHER), "sk-other", False),
        ((CLOSED, OPEN), "", False),
        ((CLOSED, UNREAD), "sk-maybe", False),
        ((), "", False),
    ],
)
def test_a_key_that_opens_nothing_is_refused_before_its_body(models, token, is_refused):
    assert (refusal(access(*models).check_before_body, token) is not None) == is_refused


def test_a_key_is_known_as_long_as_a_snapshot_has_it_and_no_request_walks_the_models():
    decides = access(CLOSED, OTHER)
    registry, walks = decides._registry, []
    registry.states = lambda: walks.append(1) or ModelRegistry.states(registry)
    for _ in range(100):
        assert refusal(decides.check_before_body, "wrong") is not None
        assert refusal(decides.model, "wrong", None, "absent") is not None
        assert decides.caller("wrong", "10.0.0.9").account == "host:10.0.0.9"
    assert len(walks) == 1
    changed = replace(CLOSED, keys={digest("sk-next"): Key()})
    registry.update({changed.key: changed, OTHER.key: OTHER})
    assert refusal(decides.check_before_body, "sk-next") is None
    assert refusal(decides.check_before_body, "sk-team") is not None
    registry.update({OTHER.key: OTHER})
    assert refusal(decides.check_before_body, "sk-next") is not None


@pytest.mark.parametrize(
    ("models", "has_file", "is_machine", "host", "token", "is_open"),
    [
        ((CLOSED,), True, False, "10.0.0.9", "sk-admin", True),
        ((CLOSED,), True, False, "10.0.0.9", "", False),
        ((CLOSED,), True, False, "10.0.0.9", "sk-team", False),
        ((CLOSED,), True, False, "127.0.0.1", "", False),  # a sidecar, a port-forward
        ((CLOSED,), False, False, "10.0.0.9", "", False),  # keys of models alone: nothing opens it
        ((CLOSED,), False, False, "10.0.0.9", "sk-team", False),
        ((OPEN,), False, False, "127.0.0.1", "", False),
        ((CLOSED,), False, True, "127.0.0.1", "", True),  # wisp up
        ((OPEN,), False, True, "192.168.0.7", "", False),
        (
            (CLOSED, OPEN),
            False,
            True,
            "192.168.0.7",
            "sk-team",
            True,
        ),  # wisp up --api-keys, wisp get from afar
        ((CLOSED, OTHER), False, True, "192.168.0.7", "sk-team", False),
    ],
)
def test_the_gateways_own_pages_need_its_own_key(
    tmp_path, models, has_file, is_machine, host, token, is_open
):
    keys = tmp_path / "keys"
    keys.write_text("admin:sk-admin\n")
    decides = access(*models, keys=keys if has_file else None, is_loopback_trusted=is_machine)
    assert (refusal(decides.check_gateway, token, host=host) is None) == is_open


def test_clients_cannot_send_what_only_the_gateway_says_and_the_key_decides_the_priority(world):
    (world.tmp_path / "keys").write_text("alice.high:sk-a\nbob:sk-b\njobs.low:sk-c\n")
    pod = world.pod()
    world.model("m", pod)
    world.start(api_keys=world.tmp_path / "keys")
    for key in ("sk-a", "sk-b", "sk-c"):
        forged = {
            "authorization": f"Bearer {key}",
            "x-wisp-priority": "high",
            "X-Wisp-Token": "mine",
            "x-wisp-anything": "1",
            "connection": "keep-alive, x-wisp-priority",
        }
        assert world.post(headers=forged).status_code == 200
    sent = [{k: v for k, v in seen.headers.items() if k.startswith("x-wisp")} for seen in pod.seen]
    tag = pod_tag("default/m", f"m-{pod.port}")
    expect = [
        {"x-wisp-priority": priority, "x-wisp-pod-tag": tag, "x-wisp-usage": "1"}
        for priority in ("high", "normal", "low")
    ]
    assert sent == expect


def test_a_port_of_its_own_shows_the_metrics_and_nothing_else(world, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world.model("m", world.pod())
    world.start(metrics_port=port)
    world.gateway.app._access._is_loopback_trusted = False  # as on a cluster
    beside = world.url.replace(str(world.gateway.config.port), str(port))
    for path, status in (("/metrics", 200), ("/livez", 200), ("/state", 404), ("/v1/models", 404)):
        assert httpx.get(beside + path).status_code == status
    assert httpx.get(f"{world.url}/metrics").status_code == 401
    assert httpx.post(f"{beside}/v1/completions", json={"model": "m"}).status_code == 404


def test_a_page_that_names_every_model_is_refused_in_words(world):
    (world.tmp_path / "keys").write_text("sk-a\n")
    world.model("m", world.pod())
    world.start(api_keys=world.tmp_path / "keys")
    world.gateway.app._access._is_loopback_trusted = False  # as on a cluster
    for path in ("/state", "/metrics"):
        answer = httpx.get(world.url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "--api-keys" in answer.json()["error"]["message"]
        assert httpx.get(world.url + path, headers={"authorization": "Bearer sk-a"}).status_code == 200


def test_a_request_looks_its_key_up_once(world, monkeypatch):
    (world.tmp_path / "keys").write_text("alice:sk-a\n")
    world.model("m", world.pod())
    world.start(api_keys=world.tmp_path / "keys")
    find, looked_up = Keyring.find, []
    monkeypatch.setattr(Keyring, "find", lambda *args: looked_up.append(1) or find(*args))
    for status, key in ((200, "sk-a"), (401, "sk-b")):
        looked_up.clear()
        assert world.post(headers={"authorization": f"Bearer {key}"}).status_code == status
        assert looked_up == [1]
