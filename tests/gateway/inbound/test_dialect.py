"""Errors of the gateway in the shape of each API, as bodies and as events."""

from __future__ import annotations

import json

import pytest

from wisp_gateway import errors
from wisp_gateway.inbound.dialect import Dialect, answer_event, error_body, error_event, of_request


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", Dialect.ANTHROPIC),
        ("/v1/messages/count_tokens", Dialect.ANTHROPIC),
        ("/v1/messages/batches", Dialect.ANTHROPIC),  # no such path, said as its SDK reads it
        ("/ns/m/v1/messages", Dialect.ANTHROPIC),
        ("/v1/responses", Dialect.RESPONSES),
        ("/openai/v1/responses/resp_1/cancel", Dialect.RESPONSES),
        ("/v1/chat/completions", Dialect.OPENAI),
        ("/v1/messagesx", Dialect.OPENAI),
        ("/v1/v1/messages", Dialect.ANTHROPIC),  # a wrong base URL: each SDK reads the remedy
        ("/messages", Dialect.ANTHROPIC),
        ("/v1/chat/completions/v1/messages", Dialect.ANTHROPIC),
        ("/v1/v1/responses", Dialect.RESPONSES),
        ("/v1/models/messages", Dialect.OPENAI),
        ("/v1/responses/messages", Dialect.RESPONSES),
        ("", Dialect.OPENAI),
    ],
)
def test_the_path_says_which_api_the_client_speaks(path, dialect):
    assert of_request(path, []) is dialect


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/openai/v1/models", "/ns/m/v1/models"])
def test_of_the_models_paths_a_header_says_it(path):
    version = (b"anthropic-version", b"2023-06-01")
    assert of_request(path, [version]) is Dialect.ANTHROPIC
    assert of_request(path, [(b"x-api-key", b"k")]) is Dialect.OPENAI
    assert of_request("/v1/chat/completions", [version]) is Dialect.OPENAI


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.BadRequest("x"), "invalid_request_error"),
        (errors.UnsupportedMedia("x"), "invalid_request_error"),
        (errors.Unauthorized("x"), "authentication_error"),
        (errors.ModelNotFound("x"), "not_found_error"),
        (errors.RequestTimeout("x"), "timeout_error"),
        (errors.BodyTooLarge("x"), "request_too_large"),
        (errors.QueueFull("x"), "rate_limit_error"),
        (errors.InternalError("x"), "api_error"),
        (errors.UpstreamFailed("x"), "api_error"),
        (errors.WaitedTooLong("x"), "overloaded_error"),  # clients try it again
        (errors.ModelSuspended("x"), "api_error"),  # and this one not
    ],
)
def test_an_error_has_a_type_that_anthropics_clients_know(error, kind):
    body = json.loads(error_body(Dialect.ANTHROPIC, error, "req-1"))
    assert body == {"type": "error", "error": {"type": kind, "message": "x"}, "request_id": "req-1"}


def events(data):
    """Parse server-sent events as clients do: name and data of each."""
    for block in data.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        yield fields.get("event"), json.loads(fields["data"])


@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_error_in_a_stream_is_an_event_that_the_dialects_sdk_raises(dialect):
    [(name, document)] = events(error_event(dialect, errors.UpstreamFailed("gone\nand lost"), "req-1"))
    assert name == (None if dialect is Dialect.OPENAI else "error")
    assert document["error"]["message"] == "gone\nand lost"
    assert document.get("type") == (None if dialect is Dialect.OPENAI else "error")
    if dialect is Dialect.RESPONSES:
        assert document["code"] == "upstream_failed"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens"}}',
            "max_tokens",
        ),
        (b"<html>", "The pod answered 400 and no stream of events."),
    ],
)
def test_a_pods_refusal_after_a_heartbeat_is_an_event_too(body, message):
    [(name, document)] = events(answer_event(Dialect.ANTHROPIC, 400, body, "req-1"))
    assert (name, document["type"], document["error"]["message"]) == ("error", "error", message)
