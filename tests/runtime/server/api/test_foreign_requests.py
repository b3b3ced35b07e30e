"""Bodies that are written as for another API: the error names what the field, or the form, is called here."""

import pytest

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.parsing.anthropic.requests import CountTokensRequest, MessagesRequest
from wisp_runtime.server.parsing.body import checked
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.parsing.pooling_requests import EmbeddingRequest
from wisp_runtime.server.parsing.responses.request import ResponsesRequest
from wisp_runtime.server.parsing.token_requests import DetokenizeRequest, TokenizeRequest

SAID = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object"}
CHATS_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}
ANTHROPICS_TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA}
BODIES = {
    ChatRequest: {"model": "m", "messages": SAID},
    CompletionRequest: {"model": "m", "prompt": "hi"},
    MessagesRequest: {"model": "m", "messages": SAID, "max_tokens": 5},
    CountTokensRequest: {"model": "m", "messages": SAID},
    ResponsesRequest: {"model": "m", "input": "hi"},
    TokenizeRequest: {"model": "m"},
    DetokenizeRequest: {"model": "m"},
    EmbeddingRequest: {"model": "m"},
}


def refusal(model, fields):
    with pytest.raises(ApiError) as refused:
        checked(BODIES[model] | fields, model)
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize(
    ("model", "name", "value", "remedy"),
    [
        (ChatRequest, "input", "hi", 'Send it as \'messages\': [{"role": "user", "content": "…"}].'),
        (ChatRequest, "prompt", "hi", "Send it as 'messages'"),
        (ChatRequest, "system", "Be brief.", "the first of 'messages', with the role 'system'."),
        (ChatRequest, "instructions", "Be brief.", "with the role 'system'."),
        (ChatRequest, "stop_sequences", ["a"], "Set stop."),
        (ChatRequest, "thinking", {"type": "enabled", "budget_tokens": 9}, "Set reasoning_effort;"),
        (ChatRequest, "max_output_tokens", 5, "Set max_tokens."),
        (ChatRequest, "previous_response_id", "r", "the complete conversation"),
        (CompletionRequest, "messages", SAID, "/v1/chat/completions"),
        (CompletionRequest, "max_completion_tokens", 5, "Set max_tokens."),
        (CompletionRequest, "top_logprobs", 2, "Set logprobs"),
        (MessagesRequest, "stop", ["a"], "Set stop_sequences."),
        (MessagesRequest, "response_format", {"type": "json_object"}, "Set output_config.format."),
        (MessagesRequest, "reasoning_effort", "low", "Set output_config.effort."),
        (MessagesRequest, "functions", [{}], "with name, description and input_schema."),
        (MessagesRequest, "max_completion_tokens", 5, "Set max_tokens."),
        (MessagesRequest, "parallel_tool_calls", False, "disable_parallel_tool_use"),
        (MessagesRequest, "n", 2, "several requests"),
        (MessagesRequest, "seed", 1, "/v1/chat/completions has it"),
        (CountTokensRequest, "input", "hi", "Send it as 'messages'"),
        (ResponsesRequest, "system", "Be brief.", "Send it as 'instructions'."),
        (ResponsesRequest, "stop_sequences", ["a"], "Set stop."),
        (ResponsesRequest, "thinking", {"type": "disabled"}, "Set reasoning.effort;"),
        (ResponsesRequest, "max_tokens", 5, "Set max_output_tokens."),
        (TokenizeRequest, "text", "hi", "Send it as 'prompt'"),
        (TokenizeRequest, "input", "hi", "Send it as 'prompt'"),
        (DetokenizeRequest, "token_ids", [1], "Send them as 'tokens'."),
        (EmbeddingRequest, "texts", ["hi"], "Send it as 'input'."),
    ],
)
def test_a_field_of_another_api_is_refused_with_its_name_here(model, name, value, remedy):
    error = refusal(model, {name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert error.message.startswith(f"{name} is not supported here. ")
    assert remedy in error.message


@pytest.mark.parametrize("model", [model for model in BODIES if getattr(model, "foreign", None)])
def test_no_foreign_field_is_one_of_ours_and_neutral_values_are_dropped(model):
    assert not model.foreign.keys() & model.model_fields.keys()
    bodies = {TokenizeRequest: {"prompt": "hi"}, DetokenizeRequest: {"tokens": []}}
    given = bodies.get(model, {"input": "hi"} if model is EmbeddingRequest else {})
    for name, refused in model.foreign.items():
        for value in (None, *refused.neutral):
            checked(BODIES[model] | given | {name: value}, model)


@pytest.mark.parametrize(
    ("model", "fields", "param", "says"),
    [
        (ChatRequest, {"max_token": 5}, "max_token", "Did you mean 'max_tokens'?"),
        (ChatRequest, {"temprature": 1}, "temprature", "Did you mean 'temperature'?"),
        (ChatRequest, {"inputs": 1}, "inputs", "Unknown parameter: 'inputs'."),
        (MessagesRequest, {"stops": 1}, "stops", "Unknown parameter: 'stops'."),
    ],
)
def test_a_name_is_taken_for_a_misspelling_of_a_near_one_alone(model, fields, param, says):
    error = refusal(model, fields)
    assert (error.param, error.code) == (param, "unknown_parameter")
    assert error.message.endswith(says)


@pytest.mark.parametrize(
    ("model", "tool", "says"),
    [
        (ChatRequest, FLAT_TOOL, "put name, description and parameters under 'function', beside type"),
        (
            ChatRequest,
            ANTHROPICS_TOOL,
            "under 'function', beside type 'function'; Anthropic's 'input_schema' is",
        ),
        (ChatRequest, ANTHROPICS_TOOL | {"type": "custom"}, "is called 'parameters' here."),
        (ResponsesRequest, CHATS_TOOL, "put name, description and parameters beside type 'function', not"),
        (ResponsesRequest, ANTHROPICS_TOOL, "set type to 'function'; Anthropic's 'input_schema' is called"),
        (
            MessagesRequest,
            CHATS_TOOL,
            "without type 'function'; OpenAI's 'parameters' is called 'input_schema'",
        ),
        (MessagesRequest, FLAT_TOOL, "a tool has name, description and input_schema here,"),
    ],
)
def test_a_tool_of_another_api_is_refused_with_the_form_of_this_one(model, tool, says):
    own = {ChatRequest: CHATS_TOOL, ResponsesRequest: FLAT_TOOL, MessagesRequest: ANTHROPICS_TOOL}[model]
    checked(BODIES[model] | {"tools": [own]}, model)
    error = refusal(model, {"tools": [own, tool]})
    assert error.param == "tools.1"
    assert error.message.startswith("tools.1: ")
    assert says in error.message


@pytest.mark.parametrize(
    ("model", "tool", "says"),
    [
        (ChatRequest, {"type": "web_search_20250305", "name": "web_search"}, "'function'"),
        (ResponsesRequest, {"type": "web_search"}, "declare a function"),
        (MessagesRequest, {"type": "bash_20250124", "name": "bash"}, "Anthropic's own"),
    ],
)
def test_a_tool_that_a_server_runs_is_taken_for_no_other(model, tool, says):
    assert says in refusal(model, {"tools": [tool]}).message


@pytest.mark.parametrize(
    ("model", "choice", "says"),
    [
        (ChatRequest, {"type": "auto"}, "write 'auto', 'required' (Anthropic's 'any') or 'none' as a string"),
        (ChatRequest, {"type": "tool", "name": "f"}, 'or {"type": "function", "function": {"name": "…"}}.'),
        (ChatRequest, {"type": "function", "name": "f"}, '{"type": "function", "function": {"name": "…"}}.'),
        (ResponsesRequest, {"type": "any"}, "'required' (Anthropic's 'any')"),
        (ResponsesRequest, {"type": "tool", "name": "f"}, 'or {"type": "function", "name": "…"}.'),
        (ResponsesRequest, {"type": "function", "function": {"name": "f"}}, '{"type": "function", "name": "'),
        (MessagesRequest, "auto", '{"type": "auto"}'),
        (MessagesRequest, "required", '{"type": "any"} (OpenAI\'s \'required\')'),
        (MessagesRequest, {"type": "function", "function": {"name": "f"}}, '{"type": "tool", "name": "…"}.'),
    ],
)  # fmt: skip
def test_a_choice_of_another_api_is_refused_with_the_form_of_this_one(model, choice, says):
    error = refusal(model, {"tool_choice": choice})
    assert error.param == "tool_choice"
    assert error.message.startswith("tool_choice: write ")
    assert says in error.message


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (
            ChatRequest,
            {"messages": "hello"},
            "Invalid 'messages': it must be a valid list, such as "
            '[{"role": "user", "content": "…"}].',
        ),
        (
            ChatRequest,
            {"messages": []},
            "Invalid 'messages': it must have at least 1 item, not 0, such as "
            '[{"role": "user", "content": "…"}].',
        ),
        (
            MessagesRequest,
            {"messages": ["hello"]},
            "Invalid 'messages.0': it must be an object, such as {\"role\": \"user\", \"content\": \"…\"}.",
        ),
        (ChatRequest, {"response_format": "json"}, "Invalid 'response_format': it must be an object."),
        (ChatRequest, {"stop": [""]}, "'stop' must be a string or a list of strings, none of them empty."),
        (ChatRequest, {"seed": "1"}, "Invalid 'seed': it must be a valid integer."),
        (ResponsesRequest, {"text": "json"}, "Invalid 'text': it must be an object."),
        (ResponsesRequest, {"metadata": "x"}, "Invalid 'metadata': it must be an object."),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content: Content part 0 is of type 'image_url'; this model only reads text parts.",
        ),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_in_our_words(model, fields, message):
    assert refusal(model, fields).message == message
