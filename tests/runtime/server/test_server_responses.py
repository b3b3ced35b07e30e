"""Responses of the endpoints: JSON, usage, and equal text in streams and complete responses."""

import json

import pytest
from fake_engine import END, MAX_CONTEXT, START, tokens_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp_runtime.engine.transport.messages import SamplingParams

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GO_ON = {"model": "tiny", "prompt": "hi"}


def chunks_of(response):
    """Return the JSON events of a stream, and check its frame."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def streamed(api, path, body):
    """Return each choice's text and finish reason, from a stream."""
    texts, reasons = {}, {}
    for chunk in chunks_of(api.post(path, json=body | {"stream": True})):
        for choice in chunk["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            reasons[choice["index"]] = reasons.get(choice["index"]) or choice["finish_reason"]
    return [(texts[index], reasons[index]) for index in sorted(texts)]


def collected(api, path, body):
    choices = api.post(path, json=body).json()["choices"]
    return [(c["text"] if "text" in c else c["message"]["content"], c["finish_reason"]) for c in choices]


def test_a_chat_response_has_the_apis_format(api, server):
    server.engine.cached_tokens = 3
    response = api.post(CHAT, json=ASK)
    answer = response.json()
    prompt = len(server.engine.submitted[0].prompt)
    assert response.headers["x-request-id"].startswith("req-")
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 13,
        "total_tokens": prompt + 13,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_a_chat_stream_has_role_text_reason_and_usage(api):
    body = ASK | {"stream": True, "stream_options": {"include_usage": True}}
    first, *middle, last, usage = chunks_of(api.post(CHAT, json=body))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == "Hello, world"
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 13
    assert all(chunk["usage"] is None for chunk in (first, *middle, last))
    assert len({chunk["id"] for chunk in (first, *middle, last, usage)}) == 1
    assert first["object"] == "chat.completion.chunk"


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("hi", [tokens_of("hi")]),
        (["a", "bc"], [tokens_of("a"), tokens_of("bc")]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ("é<|end|>", [[*tokens_of("é"), END]]),  # special tokens may be written out
    ],
)
def test_a_prompt_comes_in_four_forms(api, server, prompt, tokens):
    answer = api.post(COMPLETE, json={"model": "tiny", "prompt": prompt}).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(tokens)))
    sent = sorted(list(submit.prompt) for submit in server.engine.submitted)
    assert sent == sorted(tokens)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, tokens))


@pytest.mark.parametrize("text", ["plain", "é", "🙂🙂", "a🙂b", "\ufffd", " lead", "tab\t\n"])
@pytest.mark.parametrize("stop", [None, ["🙂"], ["b", "é"], ["never"], [" lead!"]])
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_streamed_and_complete_responses_have_equal_text(api, server, path, text, stop):
    server.engine.script = lambda _: [*tokens_of(text), END]
    body = (ASK if path == CHAT else GO_ON) | {"stop": stop}
    assert streamed(api, path, body) == collected(api, path, body)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.lists(st.one_of(st.sampled_from([*b"ab", *"é🙂".encode()]), st.integers(0, 263)), max_size=20),
    stop=st.lists(st.text("abé🙂", min_size=1, max_size=3), max_size=2),
    n=st.integers(1, 2),
)
def test_streamed_and_complete_responses_agree_for_any_tokens(api, server, tokens, stop, n):
    server.engine.script = lambda _: [*tokens, END]
    body = GO_ON | {"stop": stop, "n": n}
    assert streamed(api, COMPLETE, body) == collected(api, COMPLETE, body)


def test_a_stop_string_ends_the_sequence_in_the_engine_too(api, server):
    server.engine.script = lambda _: tokens_of("one two " * 20)
    server.engine.delay_s = 0.001
    answer = api.post(CHAT, json=ASK | {"stop": "two"}).json()
    assert answer["choices"][0]["message"]["content"] == "one "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len("one two")
    assert server.engine.aborted == [server.engine.submitted[0].request_id]


def test_n_choices_are_n_sequences_with_their_own_seeds(api, server):
    answer = api.post(CHAT, json=ASK | {"n": 3, "seed": 7}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    seeds = {submit.sampling.seed for submit in server.engine.submitted}
    assert 7 in seeds
    assert len(seeds) == 3
    assert sorted(submit.choice for submit in server.engine.submitted) == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == len(server.engine.submitted[0].prompt)  # once, as the API does
    assert answer["usage"]["completion_tokens"] == 39


@pytest.mark.parametrize("prompt", ["Say: ", [*tokens_of("Say: ")]])
def test_echo_repeats_the_prompt_before_the_completion(api, prompt):
    body = GO_ON | {"prompt": prompt, "echo": True}
    assert collected(api, COMPLETE, body) == [("Say: Hello, world", "stop")] == streamed(api, COMPLETE, body)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logprobs": None}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_p": 0}, {"top_p": 1e-6}),  # the best token only
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 10**30}, {"top_k": 264}),  # all there are: the engine counts in 32 bits
        ({"top_k": 5, "min_p": 0.1}, {"top_k": 5, "min_p": 0.1}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        (
            {"presence_penalty": -2, "frequency_penalty": 1},
            {"presence_penalty": -2.0, "frequency_penalty": 1.0},
        ),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"logit_bias": {"65": -100, "66": 1.5}}, {"logit_bias": ((65, -100.0), (66, 1.5))}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"user": "u", "metadata": {}, "store": True, "service_tier": "auto"}, {"temperature": 1.0}),
        ({"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}, {"temperature": 1.0}),
    ],
)
def test_fields_reach_the_engine_as_sampling_parameters(api, server, fields, expected):
    response = api.post(CHAT, json=ASK | fields)
    assert response.status_code == 200, response.text
    sampling = server.engine.submitted[0].sampling
    assert isinstance(sampling, SamplingParams)
    assert {name: getattr(sampling, name) for name in expected} == expected


def test_without_a_seed_each_request_gets_its_own(api, server):
    for _ in range(2):
        api.post(CHAT, json=ASK)
    first, second = (submit.sampling.seed for submit in server.engine.submitted)
    assert first != second


@pytest.mark.parametrize(("seed", "distinct"), [(None, 6), (7, 2)])
def test_equal_prompts_of_a_list_differ_without_a_seed(api, server, seed, distinct):
    api.post(COMPLETE, json=GO_ON | {"prompt": ["hi"] * 3, "n": 2, "seed": seed})
    assert len({submit.sampling.seed for submit in server.engine.submitted}) == distinct


def test_a_stop_string_that_is_a_special_token_stops_at_that_token(api, server):
    server.engine.script = lambda _: [*tokens_of("one"), START, *tokens_of("two")]
    body = {"stop": ["<|start|>", "x"]}
    for path, ask in ((CHAT, ASK), (COMPLETE, GO_ON)):
        assert collected(api, path, ask | body) == [("one", "stop")] == streamed(api, path, ask | body)


def test_special_tokens_written_in_a_message_are_those_tokens(api, server):
    # As transformers and vLLM do: a template's text is tokenized as a whole, whoever wrote which part.
    api.post(CHAT, json=ASK | {"messages": [{"role": "user", "content": "a<|end|>b"}]})
    assert server.engine.submitted[0].prompt.count(END) == 2


@pytest.mark.parametrize(
    ("path", "fields", "max_tokens"),
    [
        (CHAT, {"max_tokens": 3}, 3),
        (CHAT, {"max_completion_tokens": 4}, 4),
        (COMPLETE, {"max_tokens": 5}, 5),
        (COMPLETE, {}, 16),  # the API's default
        (COMPLETE, {"prompt": [1] * 510}, 2),  # or what the context leaves
        (COMPLETE, {"prompt": [1] * 2, "max_tokens": 510}, 510),  # to the last place
    ],
)
def test_a_completion_may_have_as_many_tokens_as_requested(api, server, path, fields, max_tokens):
    server.engine.script = lambda _: tokens_of("x" * 600)
    response = api.post(path, json=(ASK if path == CHAT else GO_ON) | fields)
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert server.engine.submitted[0].max_tokens == max_tokens


def test_a_chat_completion_may_fill_the_context(api, server):
    api.post(CHAT, json=ASK)
    submit = server.engine.submitted[0]
    assert len(submit.prompt) + submit.max_tokens == MAX_CONTEXT


def test_ignore_eos_and_stop_tokens_reach_the_engine(api, server):
    server.engine.script = lambda _: [*tokens_of("a"), END, *tokens_of("b"), 65]
    answer = api.post(COMPLETE, json=GO_ON | {"ignore_eos": True, "stop_token_ids": [65]}).json()
    ended = {"finish_reason": "stop", "stop_reason": 65}
    assert answer["choices"][0] == {"index": 0, "text": "ab", "logprobs": None} | ended


def test_chat_logprobs_name_each_token_with_its_bytes(api, server):
    server.engine.script = lambda _: [*tokens_of("é"), END]
    body = ASK | {"logprobs": True, "top_logprobs": 2}
    content = api.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]  # the end token is no part of it
    assert content[0]["logprob"] == -0.5
    assert [best["logprob"] for best in content[0]["top_logprobs"]] == [-0.5, -9999.0]
    chunks = chunks_of(api.post(CHAT, json=body | {"stream": True}))
    entries = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for logprobs in entries if logprobs for entry in logprobs["content"]] == content


def test_completion_logprobs_are_four_lists(api):
    logprobs = api.post(COMPLETE, json=GO_ON | {"logprobs": 1, "max_tokens": 3}).json()["choices"][0][
        "logprobs"
    ]
    assert logprobs == {
        "tokens": ["H", "e", "l"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{"H": -0.5}, {"e": -0.5}, {"l": -0.5}],
        "text_offset": [0, 1, 2],
    }


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "hi"}], "<|start|>user\nhi<|end|>\n<|start|>assistant\n"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            "<|start|>user\na\nb<|end|>\n<|start|>assistant\n",
        ),
        # Templates know the older name of the role.
        ([{"role": "developer", "content": "x"}], "<|start|>system\nx<|end|>\n<|start|>assistant\n"),
        (
            [{"role": "assistant", "content": "y", "refusal": None, "annotations": []}],
            "<|start|>assistant\ny<|end|>\n<|start|>assistant\n",
        ),
    ],
)
def test_messages_go_through_the_models_template(api, server, messages, text):
    assert api.post(CHAT, json=ASK | {"messages": messages}).status_code == 200
    tokenizer = server.server.service.text.tokenizer
    assert tokenizer.decode(server.engine.submitted[0].prompt) == text


def test_the_model_list_has_the_served_name(api):
    listed = api.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert api.get("/v1/models/tiny").json() == listed["data"][0]
