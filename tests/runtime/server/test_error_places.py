"""Places that errors name: steps of the body that was sent, in every dialect."""

import copy

import pytest

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.parsing.anthropic.requests import MessagesRequest
from wisp_runtime.server.parsing.body import checked
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.parsing.pooling_requests import EmbeddingRequest, RerankRequest, ScoreRequest
from wisp_runtime.server.parsing.responses.request import ResponsesRequest

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
TEXT = {"type": "text", "text": "x"}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
    ],
    "stop": ["x"],
    "logit_bias": {"5": 1.0},
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": FUNCTION}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "structured_outputs": {"json": {"type": "object"}},
    "repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 2},
}
CHOICES = [
    "auto",
    {"type": "function", "function": {"name": "f"}},
    {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    },
]
RESPONSES = {
    "model": "m",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "item_reference", "id": "i"},
    ],
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
    ],
}
RESPONSES_CHOICES = [
    "auto",
    {"type": "function", "name": "f"},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
]
MESSAGES = {
    "model": "m",
    "max_tokens": 5,
    "messages": [
        {"role": "user", "content": [TEXT | {"citations": []}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [TEXT]}]},
    ],
    "system": [TEXT | {"cache_control": {}}],
    "tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}],
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
THINKING = [{"type": "enabled", "budget_tokens": 3}, {"type": "adaptive"}, {"type": "disabled"}]
ANTHROPIC_CHOICES = [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"}]
VALID = [
    *((ChatRequest, CHAT | {"tool_choice": choice}) for choice in CHOICES),
    *((ResponsesRequest, RESPONSES | {"tool_choice": choice}) for choice in RESPONSES_CHOICES),
    *((MessagesRequest, MESSAGES | {"thinking": thinking}) for thinking in THINKING),
    *((MessagesRequest, MESSAGES | {"tool_choice": choice}) for choice in ANTHROPIC_CHOICES),
    (CompletionRequest, {"model": "m", "prompt": ["a", [1, 2]], "stop": ["x"]}),
    (EmbeddingRequest, {"model": "m", "input": ["a", [1, 2]]}),
    (ScoreRequest, {"model": "m", "queries": ["a"], "documents": ["b", "c"]}),
    (RerankRequest, {"model": "m", "query": "a", "documents": ["b", {"text": "c"}]}),
]
WRONG = [None, True, -1, 5.5, "", "\x00", [], [[]], {}, {"x": 1}, {"type": "x"}, {"type": "text"}]


def nodes(value, path=()):
    """Yield the paths of all values in a body."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield from nodes(inner, (*path, step))


def changed(body, path, change):
    """Return a copy of a body in which ``change(owner, last step)`` was done."""
    body = copy.deepcopy(body)
    owner = body
    for step in path[:-1]:
        owner = owner[step]
    change(owner, path[-1])
    return body


def mutants(body):
    """Yield the body with one value wrong, missing, or too many."""
    for path in nodes(body):
        if not path:
            continue
        for value in WRONG:
            yield changed(body, path, lambda owner, step, value=value: owner.__setitem__(step, value))
        yield changed(body, path, lambda owner, step: owner.__delitem__(step))
        yield changed(
            body, path, lambda owner, step: owner[step].update(y=1) if isinstance(owner[step], dict) else None
        )


def refusal_of(model, body):
    try:
        checked(body, model)
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize(("model", "body"), VALID)
def test_an_error_names_a_place_of_the_body(model, body):
    checked(body, model)
    for mutant in mutants(body):
        error = refusal_of(model, mutant)
        assert error is None or error.status == 400
        *steps, _last = (error.param if error and error.param else "x").split(".")
        value = mutant
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        assert isinstance(value, dict | list), (error, mutant)


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        (MessagesRequest, {"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        (MessagesRequest, {"thinking": {"type": "x"}}, "thinking"),
        (MessagesRequest, {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (
            MessagesRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages.0.content.0.text",
        ),
        (
            MessagesRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "citations": 5}]}]},
            "messages.0.content.0.citations",
        ),
        (MessagesRequest, {"system": [{"type": "text", "text": 5}]}, "system.0.text"),
        (ChatRequest, {"tool_choice": {"type": "function"}}, "tool_choice.function"),
        (ChatRequest, {"logit_bias": {"5": "x"}}, "logit_bias.5"),
        (ResponsesRequest, {"tool_choice": {"type": "function"}}, "tool_choice.name"),
        (ResponsesRequest, {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
         "input.0.name"),
        (ScoreRequest, {"queries": ["a", 5]}, "queries"),
        (RerankRequest, {"documents": ["a", {"text": 5}]}, "documents.1"),
    ],
)  # fmt: skip
def test_the_place_is_the_innermost_that_is_wrong(model, fields, param):
    bodies = {ChatRequest: CHAT, ResponsesRequest: RESPONSES, MessagesRequest: MESSAGES}
    scored = {"model": "m", "query": "a"} if model is RerankRequest else {"model": "m", "documents": ["b"]}
    with pytest.raises(ApiError) as refused:
        checked({**bodies.get(model, scored), **fields}, model)
    assert refused.value.param == param
