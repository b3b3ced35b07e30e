"""The OpenAPI document is true: it lists every endpoint, and answers and refusals are as it says."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest
from fake_engine import END, live_server, tokens_of
from jsonschema import Draft202012Validator

from wisp_runtime.server.api.app import ENDPOINTS
from wisp_runtime.server.api.responses.paths import ROUTES
from wisp_runtime.server.openapi import document as document_module

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = CHAT | {"max_tokens": 9}
TEXT = {"model": "tiny", "prompt": "a"}
ASK = {"model": "tiny", "input": "hi"}
ITEMS = [
    {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "d"},
]


@pytest.fixture
def document(api):
    return api.get("/openapi.json").raise_for_status().json()


def schema_of(document, part):
    """The schema of a part of the document, with the components that it refers to."""
    return {**part["content"]["application/json"]["schema"], "components": document["components"]}


def test_it_lists_every_endpoint(document):
    listed = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {
        ("get", "/v1/models"),
        ("get", "/v1/models/{name}"),
        *(("post", path) for path in ENDPOINTS),
        *((method.lower(), path) for path, method, _ in ROUTES),
    }


def test_it_is_made_once_however_many_ask(tiny_model, monkeypatch):
    made = []
    monkeypatch.setattr(document_module, "openapi_document", lambda names: made.append(names) or {"a": 1})
    with live_server(tiny_model) as server, ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda _: httpx.get(f"{server.url}/openapi.json", timeout=60), range(8)))
    assert [answer.json() for answer in answers] == [{"a": 1}] * 8
    assert made == [("tiny",)]


def test_every_schema_is_one_and_every_reference_is_there(document):
    for path, methods in document["paths"].items():
        for operation in methods.values():
            parts = [operation["responses"]["200"], operation.get("requestBody")]
            for part in filter(None, parts):
                schema = schema_of(document, part)
                Draft202012Validator.check_schema(schema)
                with pytest.raises(jsonschema.ValidationError):  # resolves references on its way
                    jsonschema.validate({"surely": "unknown"}, schema)
                assert path


def test_operations_have_names_of_their_own(document):
    names = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2, "stop": "o"}),
        ("/v1/chat/completions", CHAT | {"stop": ["o"], "logit_bias": {"1": 1}}),
        ("/v1/completions", TEXT),
        ("/v1/responses", ASK),
        ("/v1/responses", ASK | {"input": ITEMS, "background": True, "metadata": {"a": "b"}}),
        ("/v1/responses", ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        (
            "/v1/responses",
            ASK | {"max_output_tokens": 3, "stop": ["x"], "text": {"format": {"type": "text"}}},
        ),
        ("/v1/responses/input_tokens", ASK),
        ("/v1/completions", TEXT | {"prompt": [[1, 2], "a"], "logprobs": 1, "echo": False}),
        ("/v1/embeddings", {"model": "tiny", "input": ["a", [1, 2]]}),
        ("/v1/embeddings", {"model": "tiny", "input": "a", "encoding_format": "base64", "dimensions": 2}),
        ("/v1/score", {"model": "tiny", "text_1": "a", "text_2": ["a", "b"]}),
        ("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["a", {"text": "b"}], "top_n": 1}),
        ("/v1/messages", MESSAGE),
        (
            "/v1/messages",
            MESSAGE | {"diagnostics": {"previous_message_id": "msg_1"}, "stop_sequences": ["o"]},
        ),
        ("/v1/messages/count_tokens", CHAT),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}),
        ("/tokenize", {"content": "é", "with_pieces": True}),
        ("/detokenize", {"tokens": [104, 105]}),
    ],
)
def test_a_request_it_allows_is_answered_as_it_says(api, document, path, body):
    operation = document["paths"][path]["post"]
    jsonschema.validate(body, schema_of(document, operation["requestBody"]))
    answer = api.post(path, json=body)
    assert answer.status_code == 200, answer.text
    jsonschema.validate(answer.json(), schema_of(document, operation["responses"]["200"]))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"stop": [""]}),
        ("/v1/chat/completions", CHAT | {"stop": ["a"] * 17}),
        ("/v1/chat/completions", CHAT | {"messages": []}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("/v1/chat/completions", CHAT | {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("/v1/completions", TEXT | {"prompt": []}),
        ("/v1/responses", ASK | {"input": []}),
        ("/v1/responses", ASK | {"input": [{"type": "computer_call"}]}),
        ("/v1/responses", ASK | {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("/v1/responses", ASK | {"tools": [{"type": "web_search"}]}),
        ("/v1/responses", ASK | {"tool_choice": {"type": "mcp"}}),
        ("/v1/responses", ASK | {"conversation": "c"}),
        ("/v1/responses", ASK | {"temperature": 3}),
        ("/v1/completions", TEXT | {"prompt": [["a"]]}),
        ("/v1/completions", TEXT | {"model": "another"}),
        ("/detokenize", {"tokens": "a"}),
        ("/v1/messages", CHAT),
        ("/v1/messages", MESSAGE | {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("/v1/messages", MESSAGE | {"model": "another"}),
        ("/v1/messages/count_tokens", MESSAGE),
        ("/v1/embeddings", {"model": "tiny", "input": ""}),
        ("/v1/rerank", {"model": "tiny", "query": "a", "documents": []}),
        ("/v1/embeddings", {"model": "tiny", "input": [["a"]]}),
    ],
)
def test_a_request_it_does_not_allow_is_refused_as_it_says(api, document, path, body):
    operation = document["paths"][path]["post"]
    assert not Draft202012Validator(schema_of(document, operation["requestBody"])).is_valid(body)
    answer = api.post(path, json=body)
    assert str(answer.status_code) in operation["responses"]
    assert answer.status_code in (400, 404)
    jsonschema.validate(answer.json(), schema_of(document, operation["responses"][str(answer.status_code)]))


def test_the_models_are_described_as_it_says(api, document):
    for path, address in (("/v1/models", "/v1/models"), ("/v1/models/{name}", "/v1/models/tiny")):
        described = document["paths"][path]["get"]["responses"]["200"]
        for headers in ({}, {"anthropic-version": "2023-06-01"}):
            answer = api.get(address, headers=headers)
            jsonschema.validate(answer.json(), schema_of(document, described))


def test_an_answer_with_tool_calls_would_be_allowed(document, api, server):
    server.engine.script = lambda _: [*tokens_of("x"), END]
    schema = schema_of(document, document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"])
    answer = api.post("/v1/chat/completions", json=CHAT).json()
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer["choices"][0] |= {"finish_reason": "tool_calls"}
    answer["choices"][0]["message"] |= {"content": None, "tool_calls": [call], "reasoning_content": "hm"}
    jsonschema.validate(answer, schema)


def test_stored_responses_are_described_as_it_says(api, document):
    created = api.post("/v1/responses", json=ASK | {"input": ITEMS, "background": True}).json()
    for method, path in (("get", ""), ("get", "/input_items"), ("post", "/cancel"), ("delete", "")):
        operation = document["paths"][f"/v1/responses/{{id}}{path}"][method]
        answer = api.request(method, f"/v1/responses/{created['id']}{path}")
        assert answer.status_code == 200
        jsonschema.validate(answer.json(), schema_of(document, operation["responses"]["200"]))
    gone = api.get(f"/v1/responses/{created['id']}")
    jsonschema.validate(gone.json(), schema_of(document, operation["responses"]["404"]))
