"""Translate a request of Anthropic's API into one of chat completions, and names in its errors back. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wisp_runtime.server.api.anthropic.conversation import chat_messages
from wisp_runtime.server.api.errors import ApiError, bad_request
from wisp_runtime.server.parsing.anthropic.requests import (
    CountTokensRequest,
    DisabledThinking,
    EnabledThinking,
    MessagesRequest,
    OutputFormat,
)
from wisp_runtime.server.parsing.anthropic.tools import ChosenTool, ToolChoice, ToolDefinition
from wisp_runtime.server.parsing.body import checked
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.reasoning import ReasoningSupport

NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of chat completions whose names differ in Anthropic's API."""
_ANY_NAME = "|".join(re.escape(name) for name in NAMES if name != "stop")
_NAMED = re.compile(rf"(?<=')stop(?=')|\b(?:{_ANY_NAME})\b")
_NAMED_FIRST = re.compile(rf"^(?:stop|{_ANY_NAME})\b")
_PARAMETERS = re.compile(r"\b(tools\.\d+)\.function\.parameters\b")
_FUNCTION = re.compile(r"\b(tools\.\d+)\.function\.")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(request: CountTokensRequest, support: ReasoningSupport) -> ChatRequest:
    """Return a request as one of chat completions, without a limit of tokens.

    Args:
        request: parsed body.
        support: ways in which the model's thinking can be steered. One that does not think follows every
            wish on effort and budget.

    Raises:
        ApiError: 400; some name fields of chat completions, see :func:`anthropic_names`.
    """
    fields: dict[str, Any] = {"model": request.model, "messages": chat_messages(request)}
    fields["response_format"] = _response_format(request)
    fields |= _tools(request)
    fields |= _thinking(request, support)
    if request.messages[-1].role == "assistant":
        fields["continue_final_message"] = True
    if isinstance(request, MessagesRequest):
        fields |= {
            "stop": request.stop_sequences or None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
        }
    given = {name: value for name, value in fields.items() if value is not None}
    return checked(given, ChatRequest)


@contextmanager
def anthropic_names() -> Iterator[None]:
    """Rename the fields of chat completions in errors."""
    try:
        yield
    except ApiError as error:
        field = (error.param or "").partition(".")[0]
        if field in NAMES:
            error.param = _NAMED_FIRST.sub(lambda match: NAMES[match[0]], error.param or "")
            error.message = _NAMED.sub(lambda match: NAMES[match[0]], error.message)
        elif field == "tools":
            error.param, error.message = _of_tool(error.param or ""), _of_tool(error.message)
        raise


def _of_tool(text: str) -> str:
    """Return a text with places in a tool as Anthropic's API names them."""
    return _FUNCTION.sub(r"\1.", _PARAMETERS.sub(r"\1.input_schema", text))


def _tools(request: CountTokensRequest) -> dict[str, Any]:
    if request.tools is None and request.tool_choice is None:
        return {}
    choice = request.tool_choice
    return {
        "tools": [_tool(tool) for tool in request.tools or ()],
        "tool_choice": None if choice is None else _choice(choice),
        "parallel_tool_calls": False if getattr(choice, "disable_parallel_tool_use", None) else None,
    }


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    description = tool.description
    if tool.input_examples:
        examples = "\n".join(json.dumps(example, ensure_ascii=False) for example in tool.input_examples)
        description = f"{description or ''}\nExamples of its input:\n{examples}".lstrip()
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if description is not None:
        function["description"] = description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if isinstance(choice, ChosenTool):
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _thinking(request: CountTokensRequest, support: ReasoningSupport) -> dict[str, Any]:
    if isinstance(request.thinking, DisabledThinking):
        return {"reasoning_effort": "none"}
    fields: dict[str, Any] = {}
    thinks = support.format is not None
    if request.output_config and (thinks or support.reads_effort):
        fields["reasoning_effort"] = request.output_config.effort
    if isinstance(request.thinking, EnabledThinking) and thinks:
        fields["thinking_token_budget"] = request.thinking.budget_tokens
    return fields


def _response_format(request: CountTokensRequest) -> dict[str, Any] | None:
    """Return the schema of the answer, which has two places: ``output_format`` is its earlier one."""
    format_ = _output_format(request)
    if format_ is None:
        return None
    return {
        "type": "json_schema",
        "json_schema": {"name": "output", "strict": True, "schema": format_.schema_},
    }


def _output_format(request: CountTokensRequest) -> OutputFormat | None:
    new = request.output_config.format if request.output_config else None
    if new is not None and request.output_format is not None:
        raise bad_request("Set 'output_config.format' or 'output_format', not both.", "output_format")
    return new or request.output_format
