"""Usage of an answer for the gateway, of each endpoint: the same numbers as the answer's own."""

import json

import pytest

from wisp_gateway.inbound.usage import Usage
from wisp_gateway.upstream import usage_report

ASK = {"x-wisp-usage": "1"}
CHAT = {"messages": [{"role": "user", "content": "hi there"}], "max_tokens": 3, "temperature": 0}
TEXT = {"prompt": "hi there", "max_tokens": 3, "temperature": 0}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": {"input": "hi there", "max_output_tokens": 3, "temperature": 0},
    "/v1/messages": CHAT,
}


def report_of(got):
    """Return the report of an answer: of its head, or of its end."""
    if "x-wisp-usage" in got.headers:
        return usage_report.parse(got.headers["x-wisp-usage"].encode(), 0.0)
    events, _, report = got.content.partition(usage_report.COMMENT)
    assert events.endswith(b"\n\n")
    assert b"\n" not in report
    return usage_report.parse(report, 0.0)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_every_generation_is_reported_to_a_sender_that_asks(api, path, stream):
    usage = report_of(api.post(path, json={"model": "tiny", "stream": stream, **BODIES[path]}, headers=ASK))
    assert usage.completion_tokens == 3
    assert usage.prompt_tokens > 0
    assert usage.finish == "length"
    assert usage.first_token_s > 0
    assert usage.per_token_s >= 0


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_reported_to_anybody_else(api, path, stream):
    got = api.post(path, json={"model": "tiny", "stream": stream, **BODIES[path]})
    assert "x-wisp-usage" not in got.headers
    assert b"wisp-usage" not in got.content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"n": 3}),
        ("/v1/completions", TEXT | {"n": 2, "prompt": ["hi there", "and here", "hi there"]}),
        ("/v1/completions", TEXT | {"n": 2, "best_of": 4, "temperature": 1}),
        ("/v1/completions", TEXT | {"max_tokens": 0, "echo": True, "logprobs": 1}),
    ],
)
def test_the_tokens_are_those_of_the_answers_own_usage(api, path, body):
    got = api.post(path, json={"model": "tiny", **body}, headers=ASK)
    usage, own = report_of(got), got.json()["usage"]
    assert (usage.prompt_tokens, usage.completion_tokens) == (own["prompt_tokens"], own["completion_tokens"])
    assert usage.cached_tokens == own["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_those_of_each_prompt_once(api, server, stream):
    server.engine.cached_tokens = 3
    body = {"model": "tiny", **TEXT, "n": 2, "prompt": ["hi there", "you too"], "stream": stream}
    assert report_of(api.post("/v1/completions", json=body, headers=ASK)).cached_tokens == 6


def test_an_embeddings_prompts_are_counted_and_no_token_is_generated(api):
    body = {"model": "tiny", "input": ["four", "sixsix"]}
    assert report_of(api.post("/v1/embeddings", json=body, headers=ASK)) == Usage(
        10, 0, 0, "stop", None, None
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/tokenize"])
def test_a_refusal_and_a_request_without_a_generation_report_nothing(api, path):
    got = api.post(path, json={"model": "tiny", "prompt": "x"}, headers=ASK)
    assert "x-wisp-usage" not in got.headers


@pytest.mark.parametrize("reason", ["refused", "error", "overloaded", "expired"])
def test_a_request_that_the_engine_fails_before_a_token_reports_nothing(api, server, reason):
    server.engine.fails_with, server.engine.refuses_with = "no", reason
    got = api.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=ASK)
    assert got.status_code >= 400
    assert "x-wisp-usage" not in got.headers


def test_the_report_is_what_the_contract_shows(api):
    got = api.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=ASK)
    assert json.loads(got.headers["x-wisp-usage"]).keys() == {
        "promptTokens",
        "cachedTokens",
        "completionTokens",
        "finish",
        "firstTokenSeconds",
        "perTokenSeconds",
    }
