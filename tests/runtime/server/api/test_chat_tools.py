"""Tools of a chat, by the official client: described to the model, called by it, and answered."""

import json
from dataclasses import replace

import openai
import pytest
from fake_engine import END, tokens_of
from llguidance import LLMatcher, LLTokenizer

ASK = [{"role": "user", "content": "Weather in Zürich?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
ARGUMENTS = {"city": "Zürich"}
CALL_JSON = json.dumps({"name": "get_weather", "arguments": ARGUMENTS}, ensure_ascii=False)
CALL = f"<tool_call>\n{CALL_JSON}\n</tool_call>"
CALLS = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'


@pytest.fixture
def client(api, server):
    server.engine.info = replace(server.engine.info, max_context=4096)
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="-", max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture
def says(server):
    """Has the engine say a text, and returns the prompts that it was given."""

    def says(text):
        server.engine.script = lambda _: [*tokens_of(text), END]
        return lambda: [bytes(t for t in each.prompt if t < 256).decode() for each in server.engine.submitted]

    return says


def test_a_call_comes_back_as_one(client, says):
    says(CALLS)
    (choice,) = client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER, TIME]).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("get_weather", ARGUMENTS), ("get_time", {})]
    assert len({call.id for call in choice.message.tool_calls}) == 2


@pytest.mark.parametrize(("stop", "finish"), [("Zür", "stop"), ("</tool_call>", "tool_calls")])
def test_a_call_that_a_stop_string_cut_is_no_reason_to_run_it(client, says, stop, finish):
    says(CALL)
    ask = {"model": "tiny", "messages": ASK, "tools": [WEATHER], "stop": stop}
    (choice,) = client.chat.completions.create(**ask).choices
    assert choice.finish_reason == finish
    *_, last = client.chat.completions.create(**ask, stream=True)
    assert last.choices[0].finish_reason == finish


def test_a_streamed_call_is_the_same(client, says):
    says(CALLS)
    with client.chat.completions.stream(model="tiny", messages=ASK, tools=[WEATHER, TIME]) as stream:
        events = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("get_weather", ARGUMENTS), ("get_time", {})]
    assert "tool_calls.function.arguments.delta" in events


def test_tools_are_described_to_a_template_that_has_none(client, says):
    prompts = says("fine")
    history = [
        {"role": "system", "content": "Be brief."},
        *ASK,
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=history, tools=[WEATHER])
    assert answer.choices[0].message.content == "fine"
    assert answer.choices[0].finish_reason == "stop"
    (prompt,) = prompts()
    assert prompt.startswith("system\nBe brief.\n\nYou can call functions.")
    assert json.dumps(WEATHER["function"]) in prompt
    assert CALL in prompt
    assert "user\n<tool_response>\n12 degrees\n</tool_response>" in prompt


@pytest.mark.parametrize("choice", ["none", None])
def test_without_tools_markup_is_text(client, says, choice):
    says(CALL)
    fields = {"tools": [WEATHER], "tool_choice": choice} if choice else {}
    (answer,) = client.chat.completions.create(model="tiny", messages=ASK, **fields).choices
    assert answer.message.content == CALL
    assert answer.message.tool_calls is None
    assert answer.finish_reason == "stop"


def test_a_second_call_ends_an_answer_that_may_have_one(client, says, server):
    says(f"{CALLS} and more")
    (choice,) = client.chat.completions.create(
        model="tiny", messages=ASK, tools=[WEATHER, TIME], parallel_tool_calls=False
    ).choices
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    assert server.engine.aborted == [server.engine.submitted[0].request_id]


def test_each_choice_has_its_own_calls(client, says):
    says(CALL)
    choices = client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER], n=2).choices
    assert [len(choice.message.tool_calls) for choice in choices] == [1, 1]
    assert choices[0].message.tool_calls[0].id != choices[1].message.tool_calls[0].id


def test_a_call_cut_by_the_length_says_so(client, says):
    says(CALL)
    (choice,) = client.chat.completions.create(
        model="tiny", messages=ASK, tools=[WEATHER], max_tokens=len(CALL.encode()) - 20
    ).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.name == "get_weather"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answer", "max_tokens", "choice", "content"),
    [
        (CALL, 5, "required", ""),
        (CALL, len("<tool_call>"), "required", ""),
        (CALL, len('<tool_call>\n{"name": "get_w'), "required", ""),
        (CALLS, len("Let me see.\n<tool_call>"), "auto", "Let me see."),
        (CALLS, len('Let me see.\n<tool_call>\n{"na'), "auto", "Let me see."),
        (f"It begins with {CALL[:11]}", 99, "auto", "It begins with <tool_call>"),  # ended by the model
        ("<tool_call> is markup, so it is text", 28, "auto", "<tool_call> is markup, so it"),
    ],
)
def test_a_call_cut_before_its_name_shows_no_markup(
    client, says, stream, answer, max_tokens, choice, content
):
    says(answer)
    asked = {"model": "tiny", "messages": ASK, "tools": [WEATHER], "tool_choice": choice}
    answered = client.chat.completions.create(**asked, max_tokens=max_tokens, stream=stream)
    shown = [chunk.choices[0].delta for chunk in answered] if stream else [answered.choices[0].message]
    assert "".join(part.content or "" for part in shown) == content
    assert not any(part.tool_calls for part in shown)


def strict(tool, parameters):
    return {"type": "function", "function": {**tool["function"], "strict": True, "parameters": parameters}}


CLOSED = {**WEATHER["function"]["parameters"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "allowed", "refused"),
    [
        ({"tool_choice": "required"}, CALL, "Hello"),
        ({"tool_choice": "required"}, f"{CALL}\n{CALL}", CALL.replace("get_weather", "get_time")),
        ({"tool_choice": "required", "parallel_tool_calls": False}, CALL, f"{CALL}\n{CALL}"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, CALL, "Hello"),
        ({"tools": [strict(WEATHER, CLOSED)]}, f"Hello. {CALL}", CALL.replace("city", "town")),
    ],
)
def test_required_and_strict_calls_are_held_to_a_grammar(client, server, says, fields, allowed, refused):
    says(CALL)
    client.chat.completions.create(**{"model": "tiny", "messages": ASK, "tools": [WEATHER], **fields})
    constraint = server.engine.submitted[-1].constraint
    assert follows(constraint, allowed)
    assert not follows(constraint, refused)


def test_calls_that_are_neither_required_nor_strict_have_no_grammar(client, server, says):
    says("Hello")
    client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER])
    assert server.engine.submitted[-1].constraint is None


def test_a_strict_tool_that_no_grammar_can_hold_is_named(client):
    impossible = strict(WEATHER, {"type": "object", "not": {"required": ["a"]}})
    with pytest.raises(openai.BadRequestError, match="Leave these keywords out of the schema") as raised:
        client.chat.completions.create(model="tiny", messages=ASK, tools=[TIME, impossible])
    assert raised.value.param == "tools.1.function.parameters"
    assert raised.value.code == "invalid_grammar"


def follows(grammar, text):
    """Return whether a text is complete by a grammar."""
    tokenizer = LLTokenizer("byte")
    matcher, tokens = LLMatcher(tokenizer, grammar), tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
