"""Find what is wrong with an answer: a failure of the server, or a body that its dialect does not have."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from connection import Answer
from mutations import Case

REFUSALS = {"queue_timeout", "chat_template_busy", "grammars_busy", "too_many_connections"}
"""Codes of the documented 503s of a server that has too much to do."""
STATUSES = {200, 400, 404, 405, 408, 413, 415, 429, 431}
OBJECTS = {
    "/v1/chat/completions": ("object", "chat.completion"),
    "/v1/completions": ("object", "text_completion"),
    "/v1/responses": ("object", "response"),
    "/v1/responses/input_tokens": ("object", "response.input_tokens"),
    "/v1/responses/ID": ("object", "response"),
    "/v1/responses/ID/cancel": ("object", "response"),
    "/v1/responses/ID/input_items": ("object", "list"),
    "/v1/messages": ("type", "message"),
    "/v1/messages/count_tokens": ("input_tokens", None),
    "/v1/embeddings": ("object", "list"),
    "/v1/score": ("object", "list"),
    "/v1/rerank": ("results", None),
    "/v2/rerank": ("results", None),
    "/tokenize": ("tokens", None),
    "/detokenize": ("prompt", None),
}
"""A field of each endpoint's answer, and its value if it is always the same."""
ENDS = {"response.completed", "response.incomplete", "response.failed", "message_stop", "error"}


def fault_of(case: Case, answer: Answer) -> str:
    """Return what is wrong with an answer; empty: nothing."""
    if case.stage != "stays" and not answer.is_complete:
        return ""
    if not answer.is_complete:
        return "the connection closed without a complete answer"
    if answer.status >= 500:
        return "" if is_overload(answer) else f"status {answer.status}"
    if answer.status not in STATUSES:
        return f"status {answer.status}"
    try:
        if answer.status != 200:
            return _error_fault(case, answer)
        if answer.headers[b"content-type"].startswith(b"text/event-stream"):
            return _stream_fault(case, bytes(answer.body))
        return _object_fault(case, answer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"a body that does not parse: {error!r}"


def is_overload(answer: Answer) -> bool:
    """Return whether an answer is a documented refusal for lack of room."""
    if answer.status != 503 or b"retry-after" not in answer.headers:
        return False
    error = json.loads(answer.body)["error"]
    return error.get("code") in REFUSALS or error.get("type") == "overloaded_error"


def _strict(text: bytes | bytearray) -> Any:
    return json.loads(text, parse_constant=_no_number)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _error_fault(case: Case, answer: Answer) -> str:
    body = _strict(answer.body)
    error = body["error"]
    if not (isinstance(error["message"], str) and error["message"] and len(answer.body) < 4000):
        return "an error without a message, or with a long one"
    if body.get("type") == "error":
        is_right = case.path.startswith("/v1/messages") or case.closes
        return (
            "" if is_right and error["type"] and body["request_id"] else "Anthropic's error of another path"
        )
    is_right = not case.path.startswith("/v1/messages") or case.closes
    return (
        "" if is_right and error.keys() == {"message", "type", "param", "code"} else "no error of its dialect"
    )


def _object_fault(case: Case, answer: Answer) -> str:
    if answer.headers[b"content-type"].startswith(b"text/plain"):
        return "" if case.path == "/metrics" else "plain text"
    body = _strict(answer.body)
    if case.path not in OBJECTS or case.method != "POST":
        return ""
    name, value = OBJECTS[case.path]
    return (
        "" if body[name] == value or (value is None and name in body) else f"an answer without its {name!r}"
    )


def _stream_fault(case: Case, body: bytes) -> str:
    *events, rest = body.split(b"\n\n")
    last: Any = None
    for event in events:
        line = event.rsplit(b"\n", 1)[-1]
        if not line.startswith(b"data: "):
            return f"an event without data: {event[:100]!r}"
        last = "[DONE]" if line == b"data: [DONE]" else _strict(line[6:])
    if rest:
        return f"bytes behind the last event: {rest[:100]!r}"
    if case.path.startswith("/v1/responses") or case.path == "/v1/messages":
        return "" if last["type"] in ENDS else f"a stream that ends with {last['type']}"
    return "" if last == "[DONE]" or "error" in last else "a stream without its end"
