"""Bodies of Anthropic's Messages API as requests of chat completions, or refused by their field's name."""

import json

import pytest

from wisp_runtime.server.answers.reasoning import FORMATS
from wisp_runtime.server.api.anthropic.errors import error_body
from wisp_runtime.server.api.anthropic.signature import digest_signature, text_of, text_signature
from wisp_runtime.server.api.anthropic.translation import anthropic_names, chat_request
from wisp_runtime.server.api.errors import ApiError, bad_request, unsupported
from wisp_runtime.server.parsing.anthropic.requests import CountTokensRequest, MessagesRequest
from wisp_runtime.server.parsing.body import parse_body
from wisp_runtime.server.parsing.reasoning import ReasoningSupport

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": "é"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "é"}}}
THINKS = ReasoningSupport(format=FORMATS[-1], switches=("enable_thinking",))
READS_EFFORT = ReasoningSupport(reads_effort=True)
NEVER_THINKS = ReasoningSupport()
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"


ANSWER = {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "Now in French."}
REMINDER = "<system-reminder>\nNow in French.\n</system-reminder>"


def block(text, **fields):
    return {"type": "text", "text": text, **fields}


def parsed(fields):
    body = {"model": "m", "messages": [USER], "max_tokens": 10, **fields}
    return parse_body(json.dumps(body).encode(), MessagesRequest)


def translated(support=THINKS, **fields):
    chat = chat_request(parsed(fields), support)
    return chat.model_dump(exclude_unset=True, exclude_none=True)


def messages_of(*messages, **fields):
    return translated(messages=list(messages), **fields)["messages"]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, []),
        ({"system": ""}, []),
        ({"system": "Be brief."}, ["Be brief."]),
        ({"system": [block("Be"), block("brief.", cache_control={"type": "ephemeral"})]}, ["Be\nbrief."]),
        # Claude Code's hash of the request, which no prefix would survive
        ({"system": [block(BILLING), block("Be brief.")]}, ["Be brief."]),
        ({"system": f"{BILLING}\nBe brief."}, ["Be brief."]),
        ({"system": f"Send {BILLING}"}, [f"Send {BILLING}"]),  # a text about it
    ],
)
def test_the_system_prompt_is_the_first_message(fields, prompt):
    expected = [{"role": "system", "content": text} for text in prompt]
    assert messages_of(USER, **fields) == [*expected, USER]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": [block("a"), block("b", citations=None)]}], [("user", "a\nb")]),
        # successive messages of one role are one
        ([USER, {"role": "user", "content": [block("b")]}], [("user", "hi\nb")]),
        ([SYSTEM, SYSTEM, USER], [("system", "Now in French.\nNow in French."), ("user", "hi")]),
        ([USER, SYSTEM], [("user", f"hi\n{REMINDER}")]),  # where templates take no system message
        ([USER, ANSWER, SYSTEM, USER], [("user", "hi"), ("assistant", "a"), ("user", f"{REMINDER}\nhi")]),
        ([{"role": "user", "content": []}], [("user", "")]),
        (
            [USER, ANSWER, {"role": "assistant", "content": []}, USER],
            [("user", "hi"), ("assistant", "a\n"), ("user", "hi")],
        ),
    ],
)
def test_messages_keep_their_roles_and_texts(messages, expected):
    assert [(message["role"], message["content"]) for message in messages_of(*messages)] == expected


def test_calls_and_results_are_those_of_chat_completions():
    answer = {"role": "assistant", "content": [block("Let me."), USE, USE | {"id": "toolu_2"}]}
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block("1"), block("2")]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
        block("Go on."),
    ]
    assert messages_of(USER, answer, {"role": "user", "content": results}) == [
        USER,
        {"role": "assistant", "content": "Let me.", "tool_calls": [CALL, CALL | {"id": "toolu_2"}]},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "f", "content": "1\n2"},
        {"role": "tool", "tool_call_id": "toolu_2", "name": "f", "content": "Error: no"},
        {"role": "user", "content": "Go on."},
    ]


def test_the_input_of_a_call_keeps_its_order():
    (_, answer, _) = messages_of(USER, {"role": "assistant", "content": [USE]}, USER)
    assert list(answer["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("thinking", "text"),
    [
        ({"thinking": "Hm.", "signature": digest_signature("Hm.")}, "Hm."),
        ({"thinking": "Hm.", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"}, "Hm."),  # of another server
        ({"thinking": "", "signature": text_signature("Hm, é.")}, "Hm, é."),  # was not shown
        ({"thinking": "", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"}, None),
        ({"thinking": "", "signature": "wisp-text-%"}, None),
        ({"thinking": ""}, None),
    ],
)
def test_thinking_comes_back_with_its_message(thinking, text):
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    content = [{"type": "thinking", **thinking}, redacted, block("Yes.")]
    (_, answer, _) = messages_of(USER, {"role": "assistant", "content": content}, USER)
    assert (answer["content"], answer.get("reasoning_content")) == ("Yes.", text)


def test_a_signature_of_a_text_gives_it_back_and_others_nothing():
    assert text_of(text_signature("a\nö")) == "a\nö"
    assert text_of(digest_signature("a")) == text_of("wisp-text-/w==") == text_of("") == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": FUNCTION}]}),
        (
            {
                "tools": [
                    TOOL | {"type": "custom", "description": "F.", "strict": True, "cache_control": None}
                ]
            },
            {"tools": [{"type": "function", "function": FUNCTION | {"description": "F.", "strict": True}}]},
        ),
        (
            {"tools": [TOOL | {"description": "F.", "input_examples": [{"a": 1}, {"a": 2}]}]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": FUNCTION
                        | {"description": 'F.\nExamples of its input:\n{"a": 1}\n{"a": 2}'},
                    }
                ]
            },
        ),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
            {
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
        ),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}, {"tool_choice": "auto"}),
        ({"stop_sequences": ["a", "\n"]}, {"stop": ["a", "\n"]}),
        ({"stop_sequences": []}, {}),
        ({"temperature": 0, "top_p": 1, "top_k": 0}, {"temperature": 0.0, "top_p": 1.0, "top_k": 0}),
        ({"temperature": None, "top_p": None, "top_k": None}, {}),
    ],
)
def test_fields_have_a_meaning_in_chat_completions(fields, expected):
    if "tool_choice" in fields:
        fields = fields | {"tools": [TOOL]}
        expected = expected | {"tools": [{"type": "function", "function": FUNCTION}]}
    request = translated(**fields)
    assert {name: value for name, value in request.items() if name not in ("model", "messages")} == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}, "service_tier": "auto"},
        {"metadata": {}, "service_tier": "standard_only", "cache_control": {"type": "ephemeral"}},
        {"container": None, "mcp_servers": [], "speed": "standard", "inference_geo": "global"},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}},
        {"diagnostics": {"previous_message_id": None}, "user_profile_id": "u"},
    ],
)
def test_fields_that_change_nothing_are_accepted(fields):
    assert translated(**fields) == translated()


ENABLED = {"type": "enabled", "budget_tokens": 5}


@pytest.mark.parametrize(
    ("support", "fields", "expected"),
    [
        (THINKS, {}, {}),  # as the model does by itself
        (THINKS, {"thinking": {"type": "adaptive"}}, {}),
        (THINKS, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        (THINKS, {"thinking": ENABLED}, {"thinking_token_budget": 5}),
        (THINKS, {"output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
        (
            THINKS,
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
            {"reasoning_effort": "none"},
        ),
        (
            READS_EFFORT,
            {"thinking": ENABLED, "output_config": {"effort": "low"}},
            {"reasoning_effort": "low"},
        ),
        # A model that does not think thinks within every budget: agents send one to any model.
        (NEVER_THINKS, {"thinking": ENABLED, "output_config": {"effort": "low"}}, {}),
        (NEVER_THINKS, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
    ],
)
def test_thinking_is_steered_as_far_as_the_model_can(support, fields, expected):
    assert translated(support, **fields) == translated() | expected


def test_a_last_message_of_the_assistant_is_continued():
    request = translated(messages=[USER, {"role": "assistant", "content": "The answer"}])
    assert (request["messages"][-1]["content"], request["continue_final_message"]) == ("The answer", True)


THINKING = {"type": "thinking", "thinking": "a", "signature": ""}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"max_tokens": None}, "max_tokens", "integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than"),
        ({"max_tokenss": 3}, "max_tokenss", "Unknown"),
        ({"temperature": 1.5}, "temperature", "less than or equal to 1"),
        ({"stop_sequences": [""]}, "stop_sequences.0", "at least 1"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "at most 16"),
        ({"container": "c"}, "container", "leave it out"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "tools"),
        ({"speed": "fast"}, "speed", "one speed"),
        ({"service_tier": "fast"}, "service_tier", "auto"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "Missing"),
        ({"stop_token_ids": [5]}, "stop_token_ids", "Unknown parameter"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens", "greater than"),
        ({"thinking": {"type": "between_tools"}}, "thinking", "'adaptive'"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "'max'"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits.0.type",
            "clear_thinking",
        ),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": 1}]}},
            "context_management.edits.0.keep",
            "'all'",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0",
            "web_search_20250305",
        ),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools.0.defer_loading", "Leave it out"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools.0.name", "pattern"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema", "Missing"),
        ({"tool_choice": {"type": "force"}}, "tool_choice", "'any'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", "'user'"),
        ({"messages": [USER, {"role": "assistant", "content": [USE]}]}, "messages.1", "tool_result"),
        ({"messages": [USER] * 4097}, "messages", "4097"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0", "'image'"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages.0.content.0", "must be an object"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "list"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages.0.content.0", "type"),
        (
            {"messages": [{"role": "user", "content": [RESULT]}]},
            "messages.0.content.0.tool_use_id",
            "toolu_1",
        ),
        ({"messages": [{"role": "user", "content": [THINKING]}]}, "messages.0.content.0", "'assistant'"),
        (
            {"messages": [{"role": "assistant", "content": [RESULT]}, USER]},
            "messages.0.content.0",
            "'user'",
        ),
        (
            {"messages": [{"role": "user", "content": [RESULT | {"content": [{"type": "image"}]}]}]},
            "messages.0.content.0.content.0",
            "'image'",
        ),
        ({"system": [{"type": "image"}]}, "system.0", "'image'"),
    ],
)
def test_a_refusal_names_the_field(fields, param, says):
    with pytest.raises(ApiError) as raised:
        translated(**fields)
    assert (raised.value.status, raised.value.param) == (400, param), raised.value.message
    assert says in raised.value.message


@pytest.mark.parametrize("name", ["max_tokens", "stream", "temperature", "stop_sequences"])
def test_counting_takes_no_fields_of_the_answer(name):
    body = {"model": "m", "messages": [USER], name: 1}
    with pytest.raises(ApiError, match=f"Unknown parameter: '{name}'"):
        parse_body(json.dumps(body).encode(), CountTokensRequest)


@pytest.mark.parametrize(
    ("error", "param", "message"),
    [
        (bad_request("'stop' is odd.", "stop.0"), "stop_sequences.0", "'stop_sequences' is odd."),
        (
            unsupported("response_format", "Ask."),
            "output_config.format",
            "output_config.format is not supported here. Ask.",
        ),
        (bad_request("They stop.", "messages"), "messages", "They stop."),
        (
            bad_request("'tools.1.function.parameters.a' is odd.", "tools.1.function.parameters.a"),
            "tools.1.input_schema.a",
            "'tools.1.input_schema.a' is odd.",
        ),
        (bad_request("Odd.", "tools.1.function.name"), "tools.1.name", "Odd."),
        (bad_request("Odd."), None, "Odd."),
    ],
)
def test_errors_of_chat_completions_get_anthropics_names(error, param, message):
    with pytest.raises(ApiError) as raised, anthropic_names():
        raise error
    assert (raised.value.param, raised.value.message) == (param, message)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (bad_request("Odd.", "a.b"), "invalid_request_error", "a.b: Odd."),
        (bad_request("'a.b' is odd.", "a.b"), "invalid_request_error", "'a.b' is odd."),
        (
            bad_request("Long.", None, "context_length_exceeded"),
            "invalid_request_error",
            "prompt is too long: Long.",
        ),
        (ApiError(401, "Who?"), "authentication_error", "Who?"),
        (ApiError(404, "Where?"), "not_found_error", "Where?"),
        (ApiError(405, "How?"), "invalid_request_error", "How?"),
        (ApiError(413, "Long."), "request_too_large", "Long."),
        (ApiError(429, "Later."), "rate_limit_error", "Later."),
        (ApiError(500, "Bug."), "api_error", "Bug."),
        (ApiError(503, "Later."), "overloaded_error", "Later."),
    ],
)
def test_an_error_has_anthropics_type_and_names_its_field(error, kind, message):
    details = {} if error.code is None else {"details": {"error_code": error.code}}
    assert error_body(error, "req-1") == {
        "type": "error",
        "error": {"type": kind, "message": message} | details,
        "request_id": "req-1",
    }


def test_a_call_of_the_history_has_whatever_name_the_model_gave_it():
    call = {"type": "tool_use", "id": "toolu_1", "name": "get weather", "input": {}}
    request = translated(
        messages=[USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [RESULT]}]
    )
    (written,) = request["messages"][-2]["tool_calls"]
    assert written["function"]["name"] == "get weather"
