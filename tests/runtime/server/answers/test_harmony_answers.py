"""Channels of harmony through the server: thinking, text and calls in each API, history, efforts, formats."""

import json
from dataclasses import replace

import anthropic
import httpx
import pytest
from fake_engine import live_server
from grammar_walk import ByteVocabulary
from harmony_model import IDS, MARKERS, TEMPLATE, harmony_text, harmony_tokens, write_harmony

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.tools.registry import format_of

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
THINKS = "<|channel|>analysis<|message|>Hm: é.<|end|><|start|>assistant"
FINAL = f"{THINKS}<|channel|>final<|message|>Yes, <|you|>.<|return|>"
CALLS = (
    f"{THINKS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(write_harmony(tmp_path_factory.mktemp("models") / "harmony")) as running:
        running.engine.info = replace(running.engine.info, max_context=4096)
        yield running


def says(server, text):
    server.engine.script = lambda _: harmony_tokens(text)


def ask(api, path="/v1/chat/completions", **fields):
    response = api.post(path, json=ASK | fields)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(api, **fields):
    response = api.post("/v1/chat/completions", json=ASK | fields | {"stream": True})
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [choice for event in events for choice in json.loads(event)["choices"]]


def prompt_of(server):
    return harmony_text(server.engine.submitted[-1].prompt)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, {"logprobs": True}])
def test_thinking_and_text_have_their_fields_streamed_or_not(api, server, fields):
    says(server, FINAL)
    (choice,) = ask(api, **fields)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm: é.", "Yes, <|you|>.")
    assert choice["finish_reason"] == "stop"
    deltas = [choice["delta"] for choice in streamed(api, **fields)]
    for name in ("content", "reasoning_content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]


def test_a_call_ends_the_answer_and_is_one_of_openai_s(api, server):
    says(server, CALLS)
    (choice,) = ask(api, tools=TOOLS)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm: é.", "I look.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert choice["finish_reason"] == "tool_calls"
    chunks = streamed(api, tools=TOOLS)
    parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls") or ()]
    assert "".join(part["function"].get("arguments") or "" for part in parts) == '{"city": "Oslo"}'
    assert [part["function"]["name"] for part in parts if part["function"].get("name")] == ["get_weather"]
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_both_markers_end_an_answer_though_no_file_says_so(api, server):
    ask(api)
    assert {IDS["<|return|>"], IDS["<|call|>"]} <= set(server.engine.submitted[-1].stop_token_ids)
    assert {IDS["<|return|>"], IDS["<|call|>"]} <= set(api.get("/v1/models/tiny").json()["eos_token_ids"])
    ask(api, ignore_eos=True, max_tokens=3)
    assert not server.engine.submitted[-1].stop_token_ids


def test_thinking_of_former_turns_is_left_out_and_that_of_this_one_is_not(api, server):
    call = {
        "id": "c1",
        "type": "function",
        "function": TOOLS[0]["function"] | {"arguments": '{"city": "Oslo"}'},
    }
    turn = [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": None, "reasoning_content": "Ask.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
    ]
    seen = (
        "<|start|>user<|message|>Oslo?<|end|>{}<|start|>assistant to=functions.get_weather<|channel|>"
        'commentary json<|message|>{{"city": "Oslo"}}<|call|><|start|>functions.get_weather to=assistant'
        "<|channel|>commentary<|message|>12 degrees<|end|>{}"
    )
    thought = "<|start|>assistant<|channel|>analysis<|message|>Ask.<|end|>"
    ask(api, tools=TOOLS, messages=turn)
    assert prompt_of(server).endswith(seen.format(thought, "<|start|>assistant"))
    last = {"role": "assistant", "content": "12.", "reasoning_content": "Easy."}
    ask(api, tools=TOOLS, messages=[*turn, last, {"role": "user", "content": "Thanks."}])
    answered = (
        "<|start|>assistant<|channel|>final<|message|>12.<|end|><|start|>user<|message|>Thanks.<|end|>"
        "<|start|>assistant"
    )
    assert prompt_of(server).endswith(seen.format("", answered))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "high"}),
        ("/v1/responses", {"messages": None, "input": "hi", "reasoning": {"effort": "high"}}),
        ("/v1/messages", {"max_tokens": 50, "output_config": {"effort": "high"}}),
    ],
)
def test_the_effort_reaches_the_template_from_each_api(api, server, path, fields):
    says(server, FINAL)
    body = {name: value for name, value in (ASK | fields).items() if value is not None}
    response = api.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "Reasoning: high\n" in prompt_of(server)
    assert server.engine.submitted[-1].thinking is None


@pytest.mark.parametrize(
    ("effort", "written", "budget"),
    [
        ("none", "low", 0),
        ("minimal", "low", None),
        ("low", "low", None),
        ("medium", "medium", None),
        ("xhigh", "high", None),
        ("max", "high", None),
    ],
)
def test_an_effort_that_the_model_does_not_know_is_the_nearest(api, server, effort, written, budget):
    ask(api, reasoning_effort=effort)
    assert f"Reasoning: {written}\n" in prompt_of(server)
    rule = server.engine.submitted[-1].thinking
    assert (None if rule is None else rule.max_tokens) == budget
    ask(api, reasoning_effort=effort, chat_template_kwargs={"reasoning_effort": "utmost"})
    assert "Reasoning: utmost\n" in prompt_of(server)


def test_no_effort_beside_a_format_thinks_a_little(api, server):
    ask(api, reasoning_effort="none", response_format=SCHEMA)
    assert server.engine.submitted[-1].thinking is None
    assert server.engine.submitted[-1].constraint is not None


def test_a_response_has_an_item_for_each_channel(api, server):
    says(server, CALLS)
    tool = {"type": "function", **TOOLS[0]["function"]}
    answer = api.post("/v1/responses", json={"model": "tiny", "input": "hi", "tools": [tool]}).json()
    reasoning, message, call = answer["output"]
    assert reasoning["content"][0]["text"] == "Hm: é."
    assert message["content"][0]["text"] == "I look."
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Oslo"}')


def test_anthropic_s_client_gets_a_block_for_each_channel(server):
    says(server, CALLS)
    ask = {"model": "tiny", "max_tokens": 300, "messages": ASK["messages"]}
    tools = [{"name": "get_weather", "input_schema": CITY}]
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0) as client:
        with client.messages.stream(**ask, tools=tools) as stream:
            message = stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        assert message.content[2].input == {"city": "Oslo"}
        assert message.stop_reason == "tool_use"


def test_a_budget_ends_the_thinking_by_its_marker(api, server):
    ask(api, thinking_token_budget=9)
    rule = server.engine.submitted[-1].thinking
    opening = tuple(harmony_tokens("<|channel|>analysis<|message|>"))
    assert (rule.openings[0], rule.closings[0]) == (opening, (IDS["<|end|>"],))
    assert (rule.max_tokens, rule.may_reopen, rule.is_open) == (9, True, False)


SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
PARIS = '{"city": "Paris"}'


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_format_holds_for_the_text_behind_the_thinking(api, server, tools):
    ask(api, response_format=SCHEMA, **({"tools": tools} if tools else {}))
    vocabulary, grammar = ByteVocabulary(MARKERS), server.engine.submitted[-1].constraint
    for head in ("", THINKS, THINKS * 2):
        assert vocabulary.accepts(grammar, f"{head}<|channel|>final<|message|>{PARIS}")
    assert vocabulary.accepts(grammar, f"{THINKS}<|channel|>final <|constrain|>json<|message|>{PARIS}")
    call = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS}"
    assert vocabulary.accepts(grammar, THINKS + call) is bool(tools)
    for wrong in (
        PARIS,
        f"{THINKS}<|channel|>final<|message|>Paris",
        f"<|channel|>analysis<|message|>{PARIS}",
    ):
        assert not vocabulary.accepts(grammar, wrong)


@pytest.mark.parametrize(
    "structure", [{"choice": ["yes", "no"]}, {"regex": "yes|no"}, {"grammar": 'start: "yes" | "no"'}]
)
def test_every_kind_of_format_holds_behind_the_thinking(api, server, structure):
    ask(api, structured_outputs=structure)
    vocabulary, grammar = ByteVocabulary(MARKERS), server.engine.submitted[-1].constraint
    assert vocabulary.accepts(grammar, f"{THINKS}<|channel|>final<|message|>no")
    assert not vocabulary.accepts(grammar, f"{THINKS}<|channel|>final<|message|>perhaps")


def test_a_message_that_is_continued_is_in_its_channel_already(api, server):
    messages = [*ASK["messages"], {"role": "assistant", "content": '{"city":'}]
    says(server, ' "Oslo"}<|return|>')
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    (choice,) = ask(api, messages=messages, **fields)["choices"]
    assert prompt_of(server).endswith('<|channel|>final<|message|>{"city":')
    assert choice["message"]["content"] == ' "Oslo"}'
    ask(api, messages=messages, response_format=SCHEMA, **fields)
    assert ByteVocabulary(MARKERS).accepts(server.engine.submitted[-1].constraint, PARIS)


def test_a_budget_beside_a_format_is_refused(api):
    fields = {"response_format": SCHEMA, "thinking_token_budget": 9}
    response = api.post("/v1/chat/completions", json=ASK | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "thinking_token_budget")


def test_channels_are_read_without_tools_too(tmp_path):
    with (
        live_server(write_harmony(tmp_path / "m"), tool_parser="none") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        says(server, FINAL)
        (choice,) = ask(client)["choices"]
        assert choice["message"]["reasoning_content"] == "Hm: é."
        assert choice["message"]["content"] == "Yes, <|you|>."
        refused = client.post("/v1/chat/completions", json=ASK | {"tools": TOOLS})
        assert refused.json()["error"]["param"] == "tools"


def test_a_template_that_reads_no_tools_has_channels_all_the_same(tmp_path):
    template = (
        "{% for message in messages %}{{ message.content }}{% endfor %}{# <|channel|>analysis<|message|> #}"
    )
    with (
        live_server(write_harmony(tmp_path / "m", template)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        says(server, FINAL)
        assert ask(client)["choices"][0]["message"]["content"] == "Yes, <|you|>."


def test_calls_in_text_and_thinking_in_channels_do_not_go_together(tmp_path):
    server = live_server(write_harmony(tmp_path / "m"), tool_parser="hermes", is_ready=False)
    with server as running:
        assert running.join() is not None
        assert "--reasoning-parser harmony reads calls out of its channels" in running.failure.message


def test_the_template_of_these_tests_is_harmony_s():
    assert format_of(TEMPLATE).name == "harmony"
    with pytest.raises(ConfigError):
        format_of(TEMPLATE, "harmonic")
