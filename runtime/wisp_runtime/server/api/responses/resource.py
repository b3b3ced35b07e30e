"""The response object: fields that a request decides."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from wisp_runtime.engine.transport.messages import SamplingParams
from wisp_runtime.server.parsing.responses.request import ResponsesRequest

TAG_HEADER, ACCOUNT_HEADER = "x-wisp-pod-tag", "x-wisp-account"  # from the gateway; it strips a client's own
_TAG, _ACCOUNT = re.compile(r"[0-9a-f]{12}"), re.compile(r"[0-9a-f]{16}")


def new_response_id(headers: Mapping[str, str]) -> str:
    """Return an id for a response; behind a gateway it says which pod keeps it."""
    tag = headers.get(TAG_HEADER, "")
    return f"resp_{tag if _TAG.fullmatch(tag) else ''}{uuid.uuid4().hex}"


def account_of(headers: Mapping[str, str]) -> str:
    """Return the account that asks; empty without a gateway, or without an API key."""
    account = headers.get(ACCOUNT_HEADER, "")
    return account if _ACCOUNT.fullmatch(account) else ""


def response_head(
    request: ResponsesRequest, identity: str, model: str, sampling: SamplingParams
) -> dict[str, Any]:
    """Return the fields of a response that never change.

    Args:
        request: body of the request.
        identity: id of the response.
        model: name of the model, whichever the request used.
        sampling: sampling parameters with their defaults.
    """
    return {
        "id": identity,
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": _reasoning(request),
        "service_tier": "default",
        "store": request.is_stored,
        "temperature": sampling.temperature,
        "text": _text(request),
        "tool_choice": _tool_choice(request),
        "tools": [tool.to_dict() for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p if request.top_p is None else request.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "truncation": request.truncation or "disabled",
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
    }


def _reasoning(request: ResponsesRequest) -> dict[str, Any]:
    options = request.reasoning
    if options is None:
        return {"effort": None, "summary": None}
    return {"effort": options.effort, "summary": options.shown_summary}


def _text(request: ResponsesRequest) -> dict[str, Any]:
    options = request.text
    shown = options.format.to_dict() if options and options.format else {"type": "text"}
    return {"format": shown, "verbosity": (options and options.verbosity) or "medium"}


def _tool_choice(request: ResponsesRequest) -> Any:
    choice = request.tool_choice
    return choice or "auto" if isinstance(choice, str | None) else choice.model_dump()
