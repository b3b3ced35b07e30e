"""The official client, unmodified, against the server on a loopback port."""

import json

import openai
import pytest
from fake_engine import END, live_server, tokens_of
from tool_answers import ANSWERS, TOOLS, openai_tools

ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(api, server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_it_lists_and_retrieves_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "wisp"


def test_it_chats(client):
    answer = client.chat.completions.create(model="tiny", messages=ASK)
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 13
    assert answer._request_id.startswith("req-")


def test_it_streams_a_chat_with_usage(client):
    stream = client.chat.completions.create(
        model="tiny", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello, world"
    assert chunks[-1].usage.total_tokens > 13


def test_its_streaming_helper_builds_the_complete_message(client):
    with client.chat.completions.stream(model="tiny", messages=ASK) as stream:
        events = list(stream)
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello, world"
    assert {event.type for event in events} >= {"chunk", "content.delta", "content.done"}


def test_it_completes_streamed_or_not(client):
    whole = client.completions.create(model="tiny", prompt=["a", "b"], echo=True)
    assert [choice.text for choice in whole.choices] == ["aHello, world", "bHello, world"]
    parts = client.completions.create(model="tiny", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in parts) == "Hello, world"


def test_it_reads_logprobs(client):
    answer = client.chat.completions.create(model="tiny", messages=ASK, logprobs=True, top_logprobs=1)
    assert [entry.token for entry in answer.choices[0].logprobs.content] == list("Hello, world")


@pytest.mark.parametrize("streams", [False, True])
def test_it_reads_tool_calls(client, server, streams):
    wanted = next(answer for answer in ANSWERS if str(answer) == "hermes-one_call")
    server.engine.script = lambda _: [*tokens_of(wanted.raw), END]
    asked = {"model": "tiny", "messages": ASK, "tools": openai_tools(TOOLS[2:])}
    if streams:
        with client.chat.completions.stream(**asked) as stream:
            choice = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**asked).choices[0]
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert (choice.message.content or "", tuple(calls)) == ("", wanted.calls)
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "invalid_value"),
        ({"temperature": -1}, openai.BadRequestError, "invalid_value"),
        ({"max_tokens": 10_000}, openai.BadRequestError, "context_length_exceeded"),
        ({"extra_body": {"max_token": 3}}, openai.BadRequestError, "unknown_parameter"),
        ({"verbosity": "low"}, openai.BadRequestError, "unsupported_parameter"),
    ],
)
def test_it_raises_the_right_class(client, fields, kind, code):
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**{"model": "tiny", "messages": ASK, **fields})
    assert raised.value.code == code
    assert raised.value.message


def test_it_raises_when_the_engine_fails(client, server):
    server.engine.fails_with = "out of blocks"
    with pytest.raises(openai.InternalServerError, match="out of blocks"):
        client.chat.completions.create(model="tiny", messages=ASK)


def test_it_retries_until_the_model_is_ready(tiny_model):
    with live_server(tiny_model, is_ready=False) as server:
        hasty = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        with hasty, pytest.raises(openai.InternalServerError) as raised:
            hasty.models.list()
        assert raised.value.status_code == 503
        assert raised.value.response.headers["retry-after"] == "2"
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=2) as patient:
            server._loop.call_soon_threadsafe(server._loop.call_later, 0.2, server.engine.become_ready)
            assert [model.id for model in patient.models.list()] == ["tiny"]


def test_it_raises_in_the_middle_of_a_stream_whose_engine_dies(tiny_model):
    with live_server(tiny_model) as server:
        server.engine.script = lambda _: [*tokens_of("x" * 300), END]
        server.engine.delay_s = 0.01
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            stream = client.chat.completions.create(model="tiny", messages=ASK, stream=True)
            next(iter(stream))
            server.call(server.engine.die)
            with pytest.raises(openai.APIError, match="signal 9"):
                list(stream)
        assert server.join().reason == "EngineDied"


def test_it_sends_extensions_as_extra_body(client, server):
    extra = {"repetition_penalty": 1.1, "top_k": 5}
    client.chat.completions.create(model="tiny", messages=ASK, extra_body=extra)
    sampling = server.engine.submitted[-1].sampling
    assert (sampling.repetition_penalty, sampling.top_k) == (1.1, 5)
    with pytest.raises(openai.BadRequestError, match="repetition_penalty"):
        client.chat.completions.create(model="tiny", messages=ASK, extra_body={"repetition_penalty": 0})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("completions", {"logprobs": 0}),
        ("completions", {"logprobs": 2, "best_of": 2}),
        ("completions", {"echo": True, "max_tokens": 3}),
        ("completions", {"extra_body": {"return_token_ids": True, "prompt_logprobs": 1, "min_tokens": 2}}),
        ("chat", {"extra_body": {"return_token_ids": True, "prompt_logprobs": 1, "bad_words": ["x"]}}),
        ("chat", {"logprobs": True, "extra_body": {"return_tokens_as_token_ids": True}}),
        (
            "chat",
            {
                "stream": True,
                "stream_options": {"include_usage": True},
                "extra_body": {"return_token_ids": True},
            },
        ),
    ],
)
def test_its_strict_validation_takes_every_answer(client, kind, fields):
    """But two of OpenAI's own that its client's types lack: null as the first log-probability of an echo, and
    as the reason of a completion's chunk that ends nothing."""
    with openai.OpenAI(
        base_url=client.base_url, api_key="unused", max_retries=0, _strict_response_validation=True
    ) as strict:
        if kind == "chat":
            answer = strict.chat.completions.create(model="tiny", messages=ASK, **fields)
        else:
            answer = strict.completions.create(model="tiny", prompt="hi", **fields)
        chunks = list(answer) if fields.get("stream") else [answer]
    assert chunks[0].choices
