"""Responses bodies as chats: which messages items become, and which field an error names."""

import json

import pytest

from wisp_runtime.server.api.errors import ApiError, bad_request
from wisp_runtime.server.api.responses.stored_items import input_turn, parsed_items
from wisp_runtime.server.api.responses.translation import chat_request, translated
from wisp_runtime.server.api.responses.translation import messages_of as conversation_of
from wisp_runtime.server.parsing.body import parse_body
from wisp_runtime.server.parsing.responses.request import ResponsesRequest

USER = {"role": "user", "content": "hi"}
OUTPUT_TEXT = {"type": "output_text", "text": "yes", "annotations": []}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [OUTPUT_TEXT],
    "id": "msg_1",
    "status": "completed",
}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "7"}
OUTPUT_TEXTS = ["message.output_text.logprobs"]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def given(text):
    return {"type": "input_text", "text": text}


def parsed(**fields):
    return parse_body(json.dumps({"model": "m", "input": "hi"} | fields).encode(), ResponsesRequest)


def chat_of(context=(), **fields):
    request = parsed(**fields)
    former = parsed_items([json.dumps(item) for item in context])
    messages = conversation_of(request, former, request.input)
    return chat_request(request, messages), messages.places


def messages_of(chat):
    return [message.model_dump(exclude_none=True) for message in chat.messages]


@pytest.mark.parametrize(
    ("items", "expect"),
    [
        ("hi", [USER]),
        ([USER], [USER]),
        ([{"role": "developer", "content": [given("a"), given("b")]}],
         [{"role": "developer", "content": "a\nb"}]),
        ([SAID], [{"role": "assistant", "content": "yes"}]),
        # What the model did in one turn is one message; a second text or thought begins another.
        ([THOUGHT, SAID, CALLED],
         [{"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": [CALL]}]),
        ([CALLED, CALLED], [{"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]),
        ([SAID, SAID], [{"role": "assistant", "content": "yes"}] * 2),
        ([CALLED, SAID], [{"role": "assistant", "content": "", "tool_calls": [CALL]},
                          {"role": "assistant", "content": "yes"}]),
        ([CALLED, RESULT, SAID], [{"role": "assistant", "content": "", "tool_calls": [CALL]},
                                  {"role": "tool", "content": "7", "tool_call_id": "c1"},
                                  {"role": "assistant", "content": "yes"}]),
        ([USER, THOUGHT], [USER, {"role": "assistant", "content": "", "reasoning_content": "hm"}]),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}, SAID],
         [{"role": "assistant", "content": "yes"}]),
        ([{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
         [{"role": "assistant", "content": "no"}]),
    ],
)  # fmt: skip
def test_items_become_messages(items, expect):
    chat, places = chat_of(input=items)
    assert messages_of(chat) == expect
    assert len(places) == len(expect)


@pytest.mark.parametrize(
    ("items", "expect"),
    [
        ("hi", [{"role": "system", "content": "I"}, USER]),
        # Many templates know one message of the system, at the beginning.
        ([{"role": "system", "content": "S"}, USER], [{"role": "system", "content": "I\n\nS"}, USER]),
        ([{"role": "developer", "content": "D"}, USER], [{"role": "system", "content": "I\n\nD"}, USER]),
        ([USER, {"role": "system", "content": "S"}],
         [{"role": "system", "content": "I"}, USER, {"role": "system", "content": "S"}]),
    ],
)  # fmt: skip
def test_instructions_come_first(items, expect):
    assert messages_of(chat_of(input=items, instructions="I")[0]) == expect


def test_former_items_come_before_the_input_and_survive_the_store():
    former = parsed(input=[USER, THOUGHT, SAID, CALLED, RESULT])
    stored = [json.loads(text) for _, text in input_turn(former.input).items]
    assert all(item["id"] and item["status"] == "completed" for item in stored)
    again, _ = chat_of(context=stored, input="hi")
    direct, _ = chat_of(input=[USER, THOUGHT, SAID, CALLED, RESULT, USER])
    assert messages_of(again) == messages_of(direct)


@pytest.mark.parametrize(
    ("fields", "expect"),
    [
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        (
            {"include": OUTPUT_TEXTS, "top_logprobs": 3},
            {"logprobs": True, "top_logprobs": 3},
        ),
        ({"temperature": 0.5, "top_p": 1, "seed": 3}, {"temperature": 0.5, "top_p": 1.0, "seed": 3}),
        ({"truncation": "disabled", "store": True, "text": {"format": {"type": "text"}}}, {}),
        ({"n": 1, "conversation": None, "prompt": None, "messages": None}, {}),
    ],
)
def test_fields_become_a_chats(fields, expect):
    chat, _ = chat_of(**fields)
    assert chat.model_dump(exclude_unset=True, exclude={"model", "messages"}) == expect


def test_tools_and_their_choice_become_a_chats():
    parameters = {"type": "object"}
    tools = [{"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": True}]
    function = {"name": "f", "description": "d", "parameters": parameters, "strict": True}
    named = {"type": "function", "name": "f"}
    for choice, expect in (
        ("required", "required"),
        (named, {"type": "function", "function": {"name": "f"}}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [named]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        ),
    ):
        chat, _ = chat_of(tools=tools, tool_choice=choice)
        assert [tool.model_dump() for tool in chat.tools] == [{"type": "function", "function": function}]
        assert (chat.tool_choice if isinstance(expect, str) else chat.tool_choice.model_dump()) == expect


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{}]}, "input.0.id"),
        ({"input": [{"type": "computer_call_output"}]}, "input.0.type"),
        ({"input": [{"type": ["message"]}]}, "input.0.type"),
        ({"input": [USER, {"role": "tool", "content": "x"}]}, "input.1.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
         "input.0.output"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]},
         "input.0.encrypted_content"),
        ({"input": [USER, {"role": "user", "content": "x", "name": "y"}]}, "input.1.name"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": [USER]}, "messages"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"truncation": "middle"}, "truncation"),
        ({"background": True, "store": False}, "background"),
        ({"include": ["secrets"]}, "include.0"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0.type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "name": "x y"}]}, "tools.0.name"),
        ({"tools": [{"type": "namespace", "name": "x"}]}, "tools.0.type"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": []}]}, "tools.0.tools"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": [{"type": "mcp"}]}]}, "tools.0.tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools.0"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
         "tool_choice.tools.0.type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"temperature": 9}, "temperature"),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"tempreature": 1}, "tempreature"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_served_is_a_400_that_names_it(fields, param):
    with pytest.raises(ApiError) as raised:
        chat_of(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert raised.value.message


@pytest.mark.parametrize(
    ("param", "expect"),
    [
        ("messages", "input"),
        ("messages.0.content", "instructions"),
        ("messages.1.content", "previous_response_id"),
        ("messages.2.tool_calls.0.function", "input.4"),
        ("messages.9", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("tools.3.function.name", "tools.3.name"),
        ("temperature", "temperature"),
        (None, None),
    ],
)
def test_an_error_of_the_chat_names_the_field_here(param, expect):
    places = ["instructions", "previous_response_id", "input.4"]
    error = translated(bad_request(f"Invalid '{param}': no.", param), places)
    assert (error.param, error.message) == (expect, f"Invalid '{expect}': no.")
