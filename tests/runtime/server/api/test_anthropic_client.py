"""The official anthropic client, with strict validation of responses, against the server."""

import json
import time
from dataclasses import replace

import anthropic
import httpx
import pytest
from anthropic import types
from fake_engine import END, MAX_CONTEXT, live_server, tokens_of

from wisp_runtime.server.parsing.anthropic.blocks import (
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from wisp_runtime.server.parsing.anthropic.requests import (
    REFUSED,
    AdaptiveThinking,
    CountTokensRequest,
    Diagnostics,
    EnabledThinking,
    MessagesRequest,
    Metadata,
    OutputConfig,
)
from wisp_runtime.server.parsing.anthropic.tools import ToolDefinition

ASK = [{"role": "user", "content": "hi"}]
EPHEMERAL = {"type": "ephemeral"}
WEATHER = {
    "name": "get_weather",
    "description": "Return the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": EPHEMERAL,
}
TIME = {"type": "custom", "name": "get_time", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>'
CALLS = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'
INPUT = {"city": "Zürich", "days": 3}


@pytest.fixture
def client(api, server):
    server.engine.info = replace(server.engine.info, max_context=4096)
    with official_client(server) as client:
        yield client
    server.engine.info = replace(server.engine.info, max_context=MAX_CONTEXT)


def official_client(server, **settings):
    settings = {"max_retries": 0, "_strict_response_validation": True, **settings}
    return anthropic.Anthropic(base_url=server.url, api_key="unused", **settings)


def create(client, **fields):
    return client.messages.create(**{"model": "tiny", "max_tokens": 500, "messages": ASK, **fields})


def says(server, text):
    server.engine.script = lambda _: [*tokens_of(text), END]


def prompt_of(server):
    return bytes(token for token in server.engine.submitted[-1].prompt if token < 256).decode()


def without_ids(message):
    content = [{**block, "id": ""} if "id" in block else block for block in message.to_dict()["content"]]
    return message.to_dict() | {"id": "", "content": content}


def test_it_gets_a_message(client):
    answer = create(client)
    assert answer.to_dict() == {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello, world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": answer.usage.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 13,
        },
    }
    assert answer.id.startswith("msg_")
    assert answer._request_id.startswith("req-")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Hello, wörld", {}),
        (" \n", {}),
        ("", {}),
        ("one two STOP three", {"stop_sequences": ["STOP"]}),
        (CALLS, {"tools": [WEATHER, TIME]}),
        (
            CALLS,
            {"tools": [WEATHER, TIME], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (CALLS, {"tools": [WEATHER, TIME], "max_tokens": 80}),  # cut in the input of the first call
        (CALLS, {"tools": [WEATHER, TIME], "max_tokens": 3}),
    ],
)
def test_a_streamed_message_is_that_which_is_not_streamed(client, server, text, fields):
    says(server, text)
    complete = create(client, **fields)
    request = {"model": "tiny", "max_tokens": 500, "messages": ASK, **fields}
    with client.messages.stream(**request) as stream:
        kinds = [event.type for event in stream]
        accumulated = stream.get_final_message()
    assert without_ids(accumulated) == without_ids(complete)
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


def test_events_have_the_names_and_the_order_of_the_api(api, server):
    says(server, "ab")
    body = {"model": "tiny", "max_tokens": 9, "messages": ASK, "stream": True}
    answer = api.post("/v1/messages", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [event.split("\ndata: ") for event in answer.text.split("\n\n") if event]
    assert [name for name, _ in events] == [
        "event: message_start",
        "event: ping",
        "event: content_block_start",
        "event: content_block_delta",
        "event: content_block_delta",
        "event: content_block_stop",
        "event: message_delta",
        "event: message_stop",
    ]
    assert all(json.loads(data)["type"] == name.removeprefix("event: ") for name, data in events)


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 5}, "max_tokens", None),
        ({"stop_sequences": ["x", "wor"]}, "stop_sequence", "wor"),
        ({"stop_sequences": ["<|end|>"]}, "end_turn", None),  # a special token, which an answer never shows
    ],
)
def test_the_reason_of_the_end_is_named(client, fields, reason, stop):
    answer = create(client, **fields)
    assert (answer.stop_reason, answer.stop_sequence) == (reason, stop)


def test_a_limit_beyond_the_context_ends_the_answer_where_the_context_does(client, server):
    server.engine.info = replace(server.engine.info, max_context=30)
    answer = create(client, max_tokens=16_000)
    assert (answer.stop_reason, answer.usage.output_tokens) == (
        "model_context_window_exceeded",
        30 - answer.usage.input_tokens,
    )


def test_cached_tokens_are_reported_apart(client, server):
    server.engine.cached_tokens = 16
    usage = create(client).usage
    assert (usage.cache_read_input_tokens, usage.input_tokens) == (16, client_count(client) - 16)


def client_count(client, **fields):
    return client.messages.count_tokens(**{"model": "tiny", "messages": ASK, **fields}).input_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"tools": [WEATHER, TIME]},
        {"tools": [WEATHER, TIME], "tool_choice": {"type": "none"}},
        {"messages": [*ASK, {"role": "user", "content": "é"}]},
    ],
)
def test_counted_tokens_are_those_of_the_prompt(client, fields):
    assert client_count(client, **fields) == create(client, **fields).usage.input_tokens


def test_tokens_beyond_the_context_are_counted_too(client):
    long = [{"role": "user", "content": "x" * 5000}]
    assert client_count(client, messages=long) > 5000


def test_a_tool_is_called_and_its_result_read(client, server):
    says(server, CALLS)
    answer = create(client, tools=[WEATHER, TIME])
    assert answer.stop_reason == "tool_use"
    text, first, second = answer.content
    assert text.text == "Let me see."
    assert [(use.name, use.input) for use in (first, second)] == [("get_weather", INPUT), ("get_time", {})]
    says(server, "12 degrees.")
    results = [
        {"type": "tool_result", "tool_use_id": first.id, "content": [{"type": "text", "text": "12"}]},
        {"type": "tool_result", "tool_use_id": second.id, "content": "no clock", "is_error": True},
        {"type": "text", "text": "So?"},
    ]
    history = [*ASK, answer.to_param(), {"role": "user", "content": results}]
    answer = create(client, tools=[WEATHER, TIME], messages=history)
    assert (answer.content[0].text, answer.stop_reason) == ("12 degrees.", "end_turn")
    prompt = prompt_of(server)
    assert f"assistant\n{CALLS}" in prompt
    assert "user\n<tool_response>\n12\n</tool_response>" in prompt
    assert "user\n<tool_response>\nError: no clock\n</tool_response>" in prompt
    assert "user\nSo?" in prompt


@pytest.mark.parametrize("is_streamed", [False, True])
def test_its_tool_runner_goes_on_without_a_thread(client, server, is_streamed):
    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """Return the weather of a city."""
        return f"{city}: rain for {days} days"

    said = iter([CALL, "It rains."])
    server.engine.script = lambda _: [*tokens_of(next(said)), END]
    runner = client.beta.messages.tool_runner(
        model="tiny", max_tokens=500, messages=ASK, tools=[get_weather], stream=is_streamed
    )
    replies = [step.get_final_message() if is_streamed else step for step in runner]
    assert [reply.stop_reason for reply in replies] == ["tool_use", "end_turn"]
    assert replies[-1].content[0].text == "It rains."
    assert "<tool_response>\nZürich: rain for 3 days\n</tool_response>" in prompt_of(server)


def test_what_claude_code_sends_is_served(client, server):
    says(server, "fine")
    answer = client.beta.messages.create(
        model="tiny",
        max_tokens=16_000,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": EPHEMERAL}]}],
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.9; cch=eb6c6;"},
            {"type": "text", "text": "You are an agent.", "cache_control": EPHEMERAL | {"ttl": "1h"}},
        ],
        tools=[WEATHER | {"eager_input_streaming": True, "defer_loading": False}],
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": '{"device_id":"x","session_id":"y"}'},
        betas=["claude-code-20250219", "context-management-2025-06-27"],
        extra_body={"temperature": 1},
        extra_headers={"x-app": "cli", "anthropic-dangerous-direct-browser-access": "true"},
    )
    assert (answer.content[0].text, answer.context_management.applied_edits) == ("fine", [])
    assert prompt_of(server).startswith("system\nYou are an agent.\n\nYou can call functions.")


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"model": "claude-opus-5"}, anthropic.NotFoundError, "serves 'tiny'"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "x" * 9999}]},
            anthropic.BadRequestError,
            "prompt is too long",
        ),
        ({"extra_body": {"max_token": 3}}, anthropic.BadRequestError, "Did you mean 'max_tokens'?"),
        ({"extra_body": {"system": "x" * (2 << 20)}}, anthropic.RequestTooLargeError, "longer than"),
    ],
)
def test_it_raises_the_right_class(client, fields, kind, says):
    with pytest.raises(kind, match=says) as raised:
        create(client, **fields)
    assert raised.value.request_id == raised.value.body["request_id"]


@pytest.mark.parametrize(
    ("finish", "kind"),
    [("overloaded", anthropic.RateLimitError), ("expired", anthropic.ServiceUnavailableError)],
)
def test_it_raises_what_the_engine_refuses(client, server, finish, kind):
    server.engine.refuses_with = finish
    with pytest.raises(kind) as raised:
        create(client)
    assert raised.value.response.headers["retry-after"] == "5"


def test_it_raises_in_the_middle_of_a_stream_whose_engine_dies(tiny_model):
    with live_server(tiny_model) as server, official_client(server) as client:
        server.engine.script = lambda _: [*tokens_of("x" * 300), END]
        server.engine.delay_s = 0.01
        with client.messages.stream(model="tiny", max_tokens=400, messages=ASK) as stream:
            next(iter(stream.text_stream))
            server.call(server.engine.die)
            with pytest.raises(anthropic.APIStatusError, match="signal 9") as raised:
                stream.until_done()
        assert raised.value.body["error"]["type"] == "api_error"
        assert server.join().reason == "EngineDied"


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_aborts_its_answer(api, server, is_streamed):
    server.engine.delay_s = 0.05
    server.engine.script = lambda _: [*tokens_of("x" * 300), END]
    body = {"model": "tiny", "max_tokens": 300, "messages": ASK, "stream": is_streamed}
    with httpx.Client(base_url=server.url) as leaving:
        if is_streamed:
            with leaving.stream("POST", "/v1/messages", json=body) as answer:
                next(answer.iter_bytes())
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/messages", json=body, timeout=2)
    deadline = time.monotonic() + 60
    while not server.engine.aborted:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.engine.aborted == [server.engine.submitted[0].request_id]


def test_it_lists_the_names_of_the_model(client):
    (model,) = client.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("tiny", "model", 4096)
    assert client.models.retrieve("tiny") == model
    with pytest.raises(anthropic.NotFoundError, match="serves 'tiny'"):
        client.models.retrieve("claude-opus-5")


def test_a_path_that_is_not_there_is_refused_in_its_format(client):
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.batches.list()
    assert raised.value.body["error"]["type"] == "not_found_error"


# Headers of the SDK, not fields of the body.
HEADERS = {"betas", "user_profile_id", "workspace_id"}


@pytest.mark.parametrize(
    ("params", "model"),
    [
        (types.message_create_params.MessageCreateParamsBase, MessagesRequest),
        (types.beta.message_create_params.MessageCreateParamsBase, MessagesRequest),
        (types.message_count_tokens_params.MessageCountTokensParams, CountTokensRequest),
        (types.beta.message_count_tokens_params.MessageCountTokensParams, CountTokensRequest),
    ],
)
def test_every_field_of_the_client_is_served_or_refused_by_a_remedy(params, model):
    assert set(params.__annotations__) <= {*model.model_fields, *REFUSED, *HEADERS}


@pytest.mark.parametrize(
    ("params", "model"),
    [
        (types.ToolParam, ToolDefinition),
        (types.TextBlockParam, TextBlock),
        (types.ThinkingBlockParam, ThinkingBlock),
        (types.RedactedThinkingBlockParam, RedactedThinkingBlock),
        (types.ToolUseBlockParam, ToolUseBlock),
        (types.ToolResultBlockParam, ToolResultBlock),
        (types.ThinkingConfigEnabledParam, EnabledThinking),
        (types.ThinkingConfigAdaptiveParam, AdaptiveThinking),
        (types.OutputConfigParam, OutputConfig),
        (types.MetadataParam, Metadata),
        (types.DiagnosticsParam, Diagnostics),
    ],
)
def test_every_field_of_its_objects_is_known(params, model):
    assert set(params.__annotations__) <= set(model.model_fields)


def test_answers_are_counted_by_path(client, api):
    create(client)
    metrics = api.get("/metrics").text
    assert 'wisp_http_responses_total{model_name="tiny",path="/v1/messages",status="200"}' in metrics
