"""Operations of the Responses API, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from wisp_runtime.server.openapi import response_answers as answers
from wisp_runtime.server.openapi.operation import Operation
from wisp_runtime.server.parsing.responses.request import INCLUDED, ResponsesRequest

INCLUDE: dict[str, Any] = {"type": "array", "items": {"type": "string", "enum": list(INCLUDED)}}
PATH = "/v1/responses"
ONE = f"{PATH}/{{id}}"
STREAM: dict[str, dict[str, Any]] = {
    "stream": {"type": "boolean"},
    "starting_after": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    "include": INCLUDE,
}
PAGE: dict[str, dict[str, Any]] = {
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "include": INCLUDE,
}

RESPONSE_OPERATIONS = (
    Operation(
        "post",
        PATH,
        "Answer a conversation, and keep it.",
        answers.ResponseObject,
        ResponsesRequest,
        streams=True,
    ),
    Operation(
        "post",
        f"{PATH}/input_tokens",
        "Count the tokens of a conversation.",
        answers.InputTokens,
        ResponsesRequest,
    ),
    Operation(
        "get",
        ONE,
        "Return a response that is kept, or its events.",
        answers.ResponseObject,
        streams=True,
        statuses=(400, 404, 503),
        queries=STREAM,
    ),
    Operation("delete", ONE, "Forget a response.", answers.DeletedResponse, statuses=(404, 503)),
    Operation(
        "post",
        f"{ONE}/cancel",
        "Cancel a response in the background.",
        answers.ResponseObject,
        statuses=(400, 404, 503),
    ),
    Operation(
        "get",
        f"{ONE}/input_items",
        "List the items that led to a response.",
        answers.ResponseItems,
        statuses=(400, 404, 503),
        queries=PAGE,
    ),
)
