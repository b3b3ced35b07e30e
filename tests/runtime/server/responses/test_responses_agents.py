"""The Responses API as agents use it, by the official client: tools, thinking, long conversations."""

import json
from dataclasses import replace

import openai
import pydantic
import pytest
from fake_engine import END, TEMPLATE, live_server, tokens_of, write_model

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Return the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
TIME = {"type": "function", "name": "get_time", "parameters": None, "strict": None}
ASK = {"model": "tiny", "input": "Weather in Zürich?", "tools": [WEATHER, TIME]}
ARGUMENTS = {"city": "Zürich"}
CALL_JSON = json.dumps({"name": "get_weather", "arguments": ARGUMENTS}, ensure_ascii=False)
CALLS = (
    f"Let me see.\n<tool_call>\n{CALL_JSON}\n</tool_call>\n"
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
THINKING_TEMPLATE = (
    TEMPLATE.replace(
        "{{ message.content }}",
        "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
        "{{ message.content }}",
    )
    + "{{ reasoning_effort }}"
)
THOUGHT = "<think>\nHm.\n</think>\n\nIt is sunny."


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A server whose model thinks."""
    with live_server(write_model(tmp_path_factory.mktemp("models") / "tiny", THINKING_TEMPLATE)) as server:
        yield server


def client_of(server):
    server.engine.info = replace(server.engine.info, max_context=4096)
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="-", max_retries=0, _strict_response_validation=True
    )


@pytest.fixture
def client(api, server):
    with client_of(server) as client:
        yield client


@pytest.fixture
def thinking_client(thinker):
    with client_of(thinker) as client:
        yield client


def says(server, text):
    server.engine.script = lambda _: [*tokens_of(text), END]


def prompt_of(server):
    return bytes(token for token in server.engine.submitted[-1].prompt if token < 256).decode()


def shapes(output):
    """Return the output without ids."""
    return [
        (item.name, json.loads(item.arguments)) if item.type == "function_call" else item.content[0].text
        for item in output
    ]


EXPECTED = ["Let me see.", ("get_weather", ARGUMENTS), ("get_time", {})]


def test_calls_come_back_as_items_streamed_or_not(client, server):
    says(server, CALLS)
    response = client.responses.create(**ASK)
    assert (response.status, shapes(response.output)) == ("completed", EXPECTED)
    assert len({item.call_id for item in response.output[1:]}) == 2
    assert [tool.name for tool in response.tools] == ["get_weather", "get_time"]
    with client.responses.stream(**ASK) as stream:
        events = list(stream)
        assert shapes(stream.get_final_response().output) == EXPECTED
    written = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            written[event.item_id] = written.get(event.item_id, "") + event.delta
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [written[event.item_id] for event in done] == [event.arguments for event in done]
    assert [event.name for event in done] == ["get_weather", "get_time"]


def test_an_agent_loops_until_the_model_answers(client, server):
    says(server, CALLS)
    first = client.responses.create(**ASK)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"result of {item.name}"}
        for item in first.output
        if item.type == "function_call"
    ]
    says(server, "It is sunny.")
    last = client.responses.create(
        model="tiny", input=results, previous_response_id=first.id, tools=ASK["tools"]
    )
    assert last.output_text == "It is sunny."
    prompt = prompt_of(server)
    assert prompt.index("Zürich?") < prompt.index("Let me see.") < prompt.index("result of get_weather")
    stateless = [{"role": "user", "content": ASK["input"]}, *first.output, *results]
    client.responses.create(model="tiny", input=stateless, tools=ASK["tools"], store=False)
    assert prompt_of(server) == prompt
    kinds = [item.type for item in client.responses.input_items.list(last.id, order="asc")]
    assert kinds == ["message", "message", *["function_call"] * 2, *["function_call_output"] * 2]


def test_one_call_at_a_time_if_asked(client, server):
    says(server, CALLS)
    response = client.responses.create(**ASK, parallel_tool_calls=False)
    assert shapes(response.output) == EXPECTED[:2]
    assert response.parallel_tool_calls is False


def test_functions_of_a_namespace_are_called_by_both_names(client, server):
    """Codex declares some of its tools so."""
    says(server, '<tool_call>\n{"name": "agents__close", "arguments": {"id": 1}}\n</tool_call>')
    close = {"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": False}
    namespace = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [close]}
    asked = {"model": "tiny", "input": "hi", "tools": [WEATHER, namespace]}
    first = client.responses.create(**asked, extra_body={"client_metadata": {"a": "b"}})
    (call,) = first.output
    assert (call.name, call.namespace, json.loads(call.arguments)) == ("close", "agents", {"id": 1})
    *_, last = client.responses.create(**asked, stream=True)
    assert last.response.output[0].namespace == "agents"
    assert first.tools[1].to_dict()["tools"][0]["name"] == "close"
    assert "agents__close" in prompt_of(server)
    done = {"type": "function_call_output", "call_id": call.call_id, "output": "closed"}
    client.responses.create(**(asked | {"input": [done], "previous_response_id": first.id}))
    assert prompt_of(server).count("agents__close") == 2  # declared, and called


def test_a_call_cut_by_the_limit_is_incomplete(client, server):
    says(server, CALLS)
    response = client.responses.create(**ASK, max_output_tokens=90)
    assert (response.status, response.output[-1].status) == ("incomplete", "incomplete")
    assert response.output[-1].arguments.startswith('{"city"')


def test_no_tools_are_called_where_none_are_wanted(client, server):
    says(server, "<tool_call>")
    assert client.responses.create(**ASK, tool_choice="none").output_text == "<tool_call>"
    assert "get_weather" not in prompt_of(server)


@pytest.mark.parametrize("asked", [{}, {"reasoning": {"summary": "auto"}}])
def test_thinking_is_an_item_of_its_own(thinking_client, thinker, asked):
    says(thinker, THOUGHT)
    response = thinking_client.responses.create(model="tiny", input="hi", **asked)
    thinking, message = response.output
    assert (thinking.type, message.content[0].text) == ("reasoning", "It is sunny.")
    shown, other = (thinking.summary, thinking.content) if asked else (thinking.content, thinking.summary)
    assert ([part.text for part in shown], other) == (["Hm."], [])
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    events = list(thinking_client.responses.create(model="tiny", input="hi", stream=True, **asked))
    kind = "response.reasoning_summary_text.delta" if asked else "response.reasoning_text.delta"
    assert "".join(event.delta for event in events if event.type == kind) == "Hm."
    assert events[-1].response.output[0].model_copy(update={"id": ""}) == thinking.model_copy(
        update={"id": ""}
    )


@pytest.mark.parametrize("fields", [{}, {"include": ["reasoning.encrypted_content"]}])
def test_thinking_that_is_sent_back_is_in_the_prompt(thinking_client, thinker, fields):
    says(thinker, THOUGHT)
    first = thinking_client.responses.create(model="tiny", input="hi", **fields)
    thinking_client.responses.create(model="tiny", input="more", previous_response_id=first.id)
    prompt = prompt_of(thinker)
    assert "<think>Hm.</think>It is sunny." in prompt
    thinking, message = (item.to_dict() for item in first.output)
    if fields:  # as clients do that keep only what is encrypted
        thinking["content"] = []
    history = [{"role": "user", "content": "hi"}, thinking, message, {"role": "user", "content": "more"}]
    thinking_client.responses.create(model="tiny", input=history, store=False)
    assert prompt_of(thinker) == prompt


def test_logprobs_are_those_of_the_text(thinking_client, thinker):
    says(thinker, "<think>Hm</think>\n\nYes.")
    asked = {"model": "tiny", "input": "hi", "include": ["message.output_text.logprobs"]}
    message = thinking_client.responses.create(**asked).output[-1]
    assert [entry.token for entry in message.content[0].logprobs] == list("Yes.")
    events = list(thinking_client.responses.create(**asked, stream=True))
    sent = [event.logprobs for event in events if event.type == "response.output_text.delta"]
    assert [entry.token for entries in sent for entry in entries] == list("Yes.")


class City(pydantic.BaseModel):
    """A city."""

    name: str


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_a_parsed_answer_is_of_the_type_that_was_asked_for(client, server):
    says(server, '{"name": "Zürich"}')
    response = client.responses.parse(model="tiny", input="hi", text_format=City)
    assert response.output_parsed == City(name="Zürich")
    assert (response.text.format.type, response.text.format.name) == ("json_schema", "City")
    with client.responses.stream(model="tiny", input="hi", text_format=City) as stream:
        stream.until_done()
        assert stream.get_final_response().output_parsed == City(name="Zürich")
    assert server.engine.submitted[0].constraint == server.engine.submitted[1].constraint is not None


@pytest.mark.parametrize(
    ("text", "of_chat"),
    [
        ({"format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
        ),
    ],
)
def test_a_format_is_held_to_by_the_grammar_of_a_chat(client, server, text, of_chat):
    response = client.responses.create(model="tiny", input="hi", text=text)
    assert response.text.format.type == of_chat["type"]
    messages = [{"role": "user", "content": "hi"}]
    client.chat.completions.create(model="tiny", messages=messages, response_format=of_chat)
    assert server.engine.submitted[0].constraint == server.engine.submitted[1].constraint is not None


def test_a_schema_that_cannot_be_held_to_is_refused_by_its_name_here(client):
    schema = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(
            model="tiny",
            input="hi",
            text={"format": {"type": "json_schema", "name": "a", "schema": schema}},
        )
    assert raised.value.param == "text.format.schema"
    assert "'text.format.schema'" in raised.value.message


def test_effort_reaches_the_template_and_is_shown(thinking_client, thinker):
    response = thinking_client.responses.create(model="tiny", input="hi", reasoning={"effort": "low"})
    assert response.reasoning.effort == "low"
    assert prompt_of(thinker).endswith("low")


def test_effort_is_refused_where_the_model_does_not_think(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="tiny", input="hi", reasoning={"effort": "high"})
    assert raised.value.param == "reasoning.effort"


def test_an_endless_thought_is_cut_and_said_to_be(thinking_client, thinker):
    says(thinker, "<think>" + "over and over " * 200)
    response = thinking_client.responses.create(model="tiny", input="hi", max_output_tokens=3500)
    assert response.status == "incomplete"
    assert response.incomplete_details.to_dict() == {
        "reason": "max_output_tokens",
        "stop_reason": "repetition_detected",
    }


def test_a_conversation_that_is_too_long_is_refused_or_loses_its_oldest_turns(client, server):
    history = [{"role": "system", "content": "Rules."}]
    for number in range(40):
        history += [{"role": "user", "content": f"q{number:03} " + "x" * 200}]
        history += [{"role": "assistant", "content": f"a{number:03}"}]
    history.append({"role": "user", "content": "the last"})
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="tiny", input=history)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")
    response = client.responses.create(model="tiny", input=history, truncation="auto", max_output_tokens=100)
    assert response.truncation == "auto"
    prompt = prompt_of(server)
    kept = next(number for number in range(40) if f"q{number:03}" in prompt)
    assert 0 < kept < 39
    assert prompt.startswith("system\nRules.\n")
    assert f"a{kept - 1:03}" not in prompt
    assert prompt.endswith("the last\nassistant\n")
    turn = len(server.engine.submitted[-1].prompt) + 100
    assert 4096 - 300 < turn <= 4096  # one turn more would not have fitted
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="tiny", input="x" * 5000, truncation="auto")


def test_tokens_of_a_prompt_are_counted_without_an_answer(client, server):
    counted = client.responses.input_tokens.count(**ASK, instructions="Be brief.")
    assert server.engine.submitted == []
    response = client.responses.create(**ASK, instructions="Be brief.")
    assert counted.input_tokens == response.usage.input_tokens
    more = {"model": "tiny", "input": "more", "previous_response_id": response.id}
    assert client.responses.input_tokens.count(**more).input_tokens == (
        client.responses.create(**more).usage.input_tokens
    )
