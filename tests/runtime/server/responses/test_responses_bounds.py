"""Bodies made to hurt, a store that is full, and a server that stops."""

import json
from dataclasses import replace

import httpx
import pytest
from fake_engine import END, live_server, tokens_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp_runtime.server.api.responses import background
from wisp_runtime.server.api.responses import endpoints as responses
from wisp_runtime.server.api.responses.store import ResponseStore
from wisp_runtime.server.parsing.responses.request import REFUSED, ResponsesRequest

PATH = "/v1/responses"
ASK = {"model": "tiny", "input": "hi"}

TEXTS = st.sampled_from(["", "hi", "user", "assistant", "function", "message", "auto", "resp_1", "é\u0000"])
LEAVES = st.none() | st.booleans() | st.integers(-5, 1000) | st.floats(-5, 5) | TEXTS
TYPES = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "item_reference",
        "input_text",
        "function",
    ]
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | LEAVES,
        "role": TEXTS,
        "content": st.lists(
            st.fixed_dictionaries({"type": TYPES | st.just("output_text"), "text": TEXTS}), max_size=2
        )
        | LEAVES,
        "id": TEXTS,
        "call_id": TEXTS,
        "name": TEXTS,
        "arguments": TEXTS,
        "output": LEAVES,
        "summary": st.lists(st.fixed_dictionaries({"type": TYPES, "text": TEXTS}), max_size=2) | LEAVES,
        "effort": TEXTS,
        "format": st.fixed_dictionaries({"type": TEXTS}),
        "mode": TEXTS,
    },
)
VALUES = LEAVES | OBJECTS | st.lists(LEAVES | OBJECTS, max_size=4)
FIELDS = st.sampled_from([*ResponsesRequest.model_fields, *REFUSED, "unknown"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(FIELDS, VALUES, max_size=5))
def test_no_body_is_an_error_of_the_server(api, fields):
    answer = api.post(PATH, json=ASK | fields)
    assert answer.status_code in (200, 400, 404), answer.text  # 404: another model
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?stream=perhaps", "stream"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?stream=true&starting_after=9999999999", "starting_after"),
        ("?starting_after=1", "starting_after"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?limit=x", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=nothing", "after"),
    ],
)
def test_a_query_that_is_wrong_is_a_400_that_names_it(api, path, param):
    identity = api.post(PATH, json=ASK | {"background": True}).json()["id"]
    answer = api.get(f"{PATH}/{identity}{path}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_metrics_name_the_paths_without_ids(api):
    api.get(f"{PATH}/resp_nothing")
    assert 'path="/v1/responses/ID",status="404"' in api.get("/metrics").text


@pytest.fixture
def busy_server(tiny_model):
    """A server whose answers take a minute."""
    with live_server(tiny_model, drain_timeout_s=30) as server:
        server.engine.script = lambda _: [*tokens_of("x" * 400), END]
        server.engine.delay_s = 0.15
        yield server


def test_responses_in_the_background_are_bounded_by_number(busy_server, monkeypatch):
    monkeypatch.setattr(responses, "MAX_RUNS", 2)
    with httpx.Client(base_url=busy_server.url, timeout=60) as api:
        created = [api.post(PATH, json=ASK | {"background": True}) for _ in range(3)]
        assert [answer.status_code for answer in created] == [200, 200, 429]
        assert created[-1].headers["retry-after"]
        for answer in created[:2]:
            assert api.delete(f"{PATH}/{answer.json()['id']}").json()["deleted"] is True
        assert api.post(PATH, json=ASK | {"background": True}).status_code == 200


def test_responses_in_the_background_are_bounded_by_bytes(api, server, monkeypatch):
    monkeypatch.setattr(background, "CHARGED_BYTES", 1000)
    monkeypatch.setattr(responses, "ResponseStore", lambda: ResponseStore(max_bytes=10_000))
    server.engine.script = lambda _: [*tokens_of("x" * 100), END]
    with live_server(server.server.service.text.path) as small:
        small.engine.script = server.engine.script
        with httpx.Client(base_url=small.url, timeout=60) as client:
            identity = client.post(PATH, json=ASK | {"background": True}).json()["id"]
            small.wait_until(lambda: small.server.service.active == 0)
            ended = client.get(f"{PATH}/{identity}").json()
            assert (ended["status"], ended["output"]) == ("failed", [])
            assert "create fewer at a time" in ended["error"]["message"]
            assert client.get(f"{PATH}/{identity}?stream=true").status_code == 400
            other = client.post(PATH, json=ASK).json()["id"]
            assert client.get(f"{PATH}/{other}").status_code == 200


def test_a_response_that_cannot_be_stored_says_so_and_drops_no_other(tiny_model, monkeypatch):
    monkeypatch.setattr(responses, "ResponseStore", lambda: ResponseStore(max_bytes=30_000))
    with live_server(tiny_model) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        server.engine.info = replace(server.engine.info, max_context=1 << 17)
        small = client.post(PATH, json=ASK).json()
        large = ASK | {"input": "x" * 40_000}
        answer = client.post(PATH, json=large).json()
        lines = client.post(PATH, json=large | {"stream": True}).text.splitlines()
        *_, last = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert (small["store"], answer["store"], last["response"]["store"]) == (True, False, False)
        assert (answer["status"], last["type"]) == ("completed", "response.completed")
        assert client.get(f"{PATH}/{answer['id']}").status_code == 404
        assert client.get(f"{PATH}/{small['id']}").status_code == 200


def test_a_stop_waits_for_responses_in_the_background(tiny_model):
    with live_server(tiny_model, drain_timeout_s=60) as server, httpx.Client(base_url=server.url) as api:
        server.engine.script = lambda _: [*tokens_of("x" * 50), END]
        server.engine.delay_s = 0.01
        identity = api.post(PATH, json=ASK | {"background": True}).json()["id"]
        with api.stream("GET", f"{PATH}/{identity}", params={"stream": "true"}, timeout=60) as stream:
            server.stop()
            *_, last = (line for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(last.removeprefix("data: "))["type"] == "response.completed"
        assert server.join() is None


def test_a_stop_that_waits_no_longer_fails_them_with_the_reason(busy_server):
    with httpx.Client(base_url=busy_server.url) as api:
        identity = api.post(PATH, json=ASK | {"background": True}).json()["id"]
        with api.stream("GET", f"{PATH}/{identity}", params={"stream": "true"}, timeout=60) as stream:
            busy_server.wait_until(lambda: busy_server.engine.sent)
            busy_server.stop()
            busy_server.skip_wait()
            events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "server_stopping"
