"""Every refusal has the API's shape, the right status, the field's name and a sentence."""

import gzip
import json
import re
from types import SimpleNamespace

import pytest
from fake_engine import MAX_CONTEXT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.parsing.body import body_limit
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.parsing.sampling import encode_prompt
from wisp_runtime.server.text.tokenizer import ModelTokenizer

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GO_ON = {"model": "tiny", "prompt": "hi"}


def error_of(response):
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    kind = "invalid_request_error" if response.status_code < 500 else "server_error"
    assert error["type"] == ("rate_limit_error" if response.status_code == 429 else kind)
    return error


def tool(name):
    return {"type": "function", "function": {"name": name}}


def message(**fields):
    return {"messages": [{"role": "user", "content": "hi"}, fields]}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": None}, "messages", "list"),
        ({"messages": "hi"}, "messages", "list"),
        (message(role="king", content="x"), "messages.1.role", "'user'"),
        (message(content="x"), "messages.1.role", "Missing"),
        (message(role="user"), "messages.1.content", "needs content"),
        (message(role="user", content=[]), "messages.1.content", "list of text parts"),
        (message(role="user", content=7), "messages.1.content", "string"),
        (
            message(role="user", content=[{"type": "image_url", "image_url": {}}]),
            "messages.1.content",
            "image_url",
        ),
        (message(role="user", content=[{"type": "text"}]), "messages.1.content", "part 0"),
        (message(role="user", content="forbidden"), "messages", "not that word"),  # the template's own words
        (message(role="assistant", tool_calls=[{}]), "messages.1.tool_calls.0.function", "needs a function"),
        (message(role="user", content="x", colour="red"), "messages.1.colour", "Unknown"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "0.5"}, "temperature", "number"),  # never guessed from text
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 1.5}, "n", "integer"),
        ({"n": True}, "n", "integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens", "not both"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop": ["a", 1]}, "stop", "list of strings"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"logit_bias": {"264": 1}}, "logit_bias", "0 to 263"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "0 to 263"),  # more digits than Python reads
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "100"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "1024"),
        ({"top_logprobs": 3}, "top_logprobs", "'logprobs'"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"max_token": 5}, "max_token", "'max_tokens'"),  # a typo is named, never dropped
        ({"best_off": 5}, "best_off", "Unknown"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "Missing"),
        ({"tools": [{"type": "custom"}]}, "tools.0.type", "'function'"),
        ({"tools": [tool("a b")]}, "tools.0.function.name", "pattern"),
        ({"tools": [tool("f"), tool("f")]}, "tools", "one name"),
        ({"tool_choice": "required"}, "tool_choice", "there are no 'tools'"),
        ({"tools": [tool("f")], "tool_choice": "maybe"}, "tool_choice", "'required'"),
        ({"tools": [tool("f")], "tool_choice": tool("g")}, "tool_choice", "none of the tools: f"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "shows no thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0", "0"),
        ({"stop_token_ids": [264]}, "stop_token_ids", "264 at position 0"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "at most 64"),
        ({"stop": ["a" * 257]}, "stop", "at most 256"),
        ({"seed": 1 << 64}, "seed", "less than or equal to 18446744073709551615"),
        ({"seed": -(1 << 63) - 1}, "seed", "greater than or equal to -9223372036854775808"),
        ({"messages": [{}] * 4097}, "messages", "at most 4096"),
        (
            message(role="user", content=[{"type": "text", "text": "x"}] * 1025),
            "messages.1.content",
            "1024 are",
        ),
        (message(role="assistant", tool_calls=[{}] * 1025), "messages.1.tool_calls", "1024"),
        (message(role="user", content="x", **{f"k{i}": 1 for i in range(99)}), "messages.1", "'k0', and 101"),
    ],
)
def test_a_chat_request_that_cannot_be_served_is_refused_by_name(api, change, param, says):
    response = api.post(CHAT, json=ASK | change)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"prompt": None}, "prompt", "string"),
        ({"prompt": []}, "prompt", "string"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": ["a", 1]}, "prompt", "Prompt 1"),
        ({"prompt": [[1], []]}, "prompt", "Prompt 1"),
        ({"prompt": [1.5]}, "prompt", "Prompt 0"),
        ({"prompt": [True]}, "prompt", "Prompt 0"),
        ({"prompt": [1, 264]}, "prompt", "264 at position 1"),
        ({"prompt": [-1]}, "prompt", "-1 at position 0"),
        ({"prompt": ["x"] * 600, "n": 2}, "n", "1024"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"messages": []}, "messages", "/v1/chat/completions"),
    ],
)
def test_a_completion_request_that_cannot_be_served_is_refused_by_name(api, change, param, says):
    response = api.post(COMPLETE, json=GO_ON | change)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "numbers"),
    [
        (COMPLETE, {"model": "tiny", "prompt": [1] * 512}, ["512 tokens", "512 in the prompt"]),
        (
            COMPLETE,
            GO_ON | {"max_tokens": 511},
            ["512 tokens", "513 (2 in the prompt, 511 in the completion)", "Ask for at most 510"],
        ),
        (CHAT, ASK | {"messages": [{"role": "user", "content": "x" * 600}]}, ["512 tokens", "in the prompt"]),
        (CHAT, ASK | {"max_completion_tokens": 9999}, ["512 tokens", "9999 in the completion", "at most"]),
        # The prompt alone is too long: fewer tokens to generate would not help.
        (COMPLETE, GO_ON | {"prompt": [1] * 512}, ["512 in the prompt", "Shorten the prompt by at least 1:"]),
        (COMPLETE, GO_ON | {"prompt": [1] * 600, "max_tokens": 9}, ["609 (", "prompt by at least 97:"]),
    ],
)
def test_the_error_of_a_request_beyond_the_context_has_the_numbers(api, path, body, numbers):
    response = api.post(path, json=body)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert all(number in error["message"] for number in numbers)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETE, GO_ON | {"prompt": "x" * 200_000}),
        (CHAT, ASK | {"messages": [{"role": "user", "content": "x" * 200_000}]}),
    ],
)
def test_a_text_far_longer_than_the_context_is_refused_untokenized(api, server, monkeypatch, path, body):
    monkeypatch.setattr(ModelTokenizer, "encode", None)
    response = api.post(path, json=body)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "4608 characters at the very most" in error["message"]  # 512 times "<|start|>"


def test_a_prompt_of_which_only_the_beginning_is_tokenized_is_given_no_exact_length():
    words = SimpleNamespace(longest_token_chars=100, encode=lambda text, adds_special: text.split())
    with pytest.raises(ApiError) as refused:
        encode_prompt(words, "ab " * 4000, 512, "prompt", adds_special=True)
    message = str(refused.value)
    assert "the prompt has more than 1366: only its beginning was counted" in message
    assert "by at least" not in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1, column 1"),
        (b'{"model": "tiny",\n "messages": [}', "line 2, column 15"),
        (b"[]", "object"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "Infinity"),
        (b'{"model": "\xff"}', "byte 11"),
        (b'{"\\uD800": 1}', "surrogate"),
        (b"[" * 200_000, "nested more than 64 deep"),
        (b'{"model": ' + b"[" * 200_000, "nested more than 64 deep"),
        (b'{"model": "tiny", "n": 1, "n": 2}', "'n' twice"),  # two readers may take different ones
        (b'{"n": ' + b"9" * 5000 + b"}", "cannot be read"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
            "1e999 is too large for a finite number",
        ),
        (b'{"model": "tiny", "metadata": {"a": [-1e999]}}', "-1e999 is too large"),
        (b'{"model": "tiny", "metadata": {"a": 1' + b"0" * 400 + b".0}}", "0… is too large"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], '
            b'"guided_json": "{\\"const\\": 1e999}"}',
            "1e999 is too large for a finite number",
        ),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], '
            b'"guided_json": "{\\"const\\": NaN}"}',
            "NaN is no JSON number",
        ),
    ],
)
def test_the_error_of_invalid_json_has_its_position(api, content, says):
    response = api.post(CHAT, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert says in error_of(response)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_another_content_type_is_refused(api, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    response = api.post(CHAT, content=json.dumps(ASK), headers=headers)
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


def test_a_compressed_body_is_refused_by_its_name(api):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = api.post(CHAT, content=gzip.compress(json.dumps(ASK).encode()), headers=headers)
    assert response.status_code == 415
    assert "'gzip'" in error_of(response)["message"]


def test_json_with_a_charset_is_json(api):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert api.post(CHAT, content=json.dumps(ASK), headers=headers).status_code == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_refused(api, is_chunked):
    limit = body_limit(MAX_CONTEXT, len("<|start|>"))
    content = b" " * (limit + 1)
    parts = (content[i : i + (1 << 20)] for i in range(0, len(content), 1 << 20))
    headers = {"Content-Type": "application/json"}
    response = api.post(CHAT, content=parts if is_chunked else content, headers=headers)
    assert response.status_code == 413
    assert str(limit) in error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_path"),
        ("GET", "/v1", 404, "unknown_path"),
        ("POST", "/v1/audio/speech", 404, "unknown_path"),
        ("POST", "/v1/chat/completions/", 404, "unknown_path"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/readyz", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_unknown_paths_return_errors_in_the_same_format(api, method, path, status, code):
    response = api.request(method, path)
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert status != 405 or response.headers["allow"] in error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path", "base_url"),
    [
        ("GET", "/models", "http://HOST:PORT/v1,"),
        ("POST", "/chat/completions", "http://HOST:PORT/v1,"),
        ("POST", f"{CHAT}/chat/completions", "http://HOST:PORT/v1,"),
        ("POST", f"/v1{CHAT}", "leave one /v1 out of base_url"),
    ],
)
def test_a_path_that_shows_a_wrong_base_url_is_answered_with_the_right_one(api, method, path, base_url):
    response = api.request(method, path)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (404, "unknown_path")
    assert base_url in error["message"]


def test_the_error_of_an_unknown_path_lists_the_paths(api):
    told = re.findall(r"/v1/[a-z_/]*[a-z]", error_of(api.get("/audio"))["message"])
    assert [path for path in told if api.put(path).status_code == 404] == []
    assert {CHAT, COMPLETE, "/v1/models"} <= set(told)


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (COMPLETE, GO_ON)])
def test_the_error_of_another_models_name_has_the_served_one(api, path, body):
    response = api.post(path, json=body | {"model": "gpt-4"})
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize("name", ["self", "args", "loop", "context"])
def test_template_names_may_be_words_of_python_or_jinja(api, name):
    assert api.post(CHAT, json=ASK | {"chat_template_kwargs": {name: 1}}).status_code == 200


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, "other"})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    is_chat=st.booleans(),
    change=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, min_size=1, max_size=2),
    message=st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), ANYTHING),
)
def test_no_body_breaks_the_server(api, is_chat, change, message):
    body = (
        (ASK | {"messages": [*ASK["messages"], message]} if is_chat and message else ASK)
        if is_chat
        else GO_ON
    )
    content = json.dumps(body | change).encode()  # as is: NaN, and lone surrogates as escapes
    response = api.post(
        CHAT if is_chat else COMPLETE, content=content, headers={"Content-Type": "application/json"}
    )
    assert response.status_code < 500, (content, response.text)
    if response.status_code != 200:
        error_of(response)


def test_a_refused_request_never_reaches_the_engine(api, server):
    api.post(CHAT, json=ASK | {"temperature": -1})
    assert server.engine.submitted == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_error_before_the_first_token_is_an_ordinary_500(api, server, stream):
    server.engine.fails_with = "the GPU fell off the bus"
    response = api.post(CHAT, json=ASK | {"stream": stream})
    assert response.status_code == 500
    assert error_of(response)["message"] == "the GPU fell off the bus"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "status", "code"),
    [("overloaded", 429, "engine_overloaded"), ("expired", 503, "queue_timeout")],
)
def test_a_request_that_the_engine_has_no_time_for_may_come_again(api, server, finish, status, code, stream):
    server.engine.refuses_with = finish
    for _ in range(9):  # more than the error budget: the server is not to blame
        response = api.post(CHAT, json=ASK | {"stream": stream})
        assert (response.status_code, error_of(response)["code"]) == (status, code)
        assert int(response.headers["retry-after"]) > 0
    assert server.server.service.failure is None
    assert (
        f'wisp_sequences_finished_total{{model_name="tiny",finished_reason="{finish}"}}'
        in api.get("/metrics").text
    )


def test_a_bug_of_ours_is_a_500_in_the_same_shape_and_others_are_served(api, server):
    def broken(_):
        raise RuntimeError("boom")

    original, server.server.service.engine.submit = server.engine.submit, broken
    try:
        response = api.post(CHAT, json=ASK)
    finally:
        server.server.service.engine.submit = original
    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    assert "boom" not in response.text
    assert api.post(CHAT, json=ASK).status_code == 200
