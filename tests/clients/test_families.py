"""Each family's tool markup, as three clients see it: calls are calls, whatever the model writes."""

import json

import anthropic
import litellm
import openai
import pytest
from conftest import TOKEN

FAMILIES = ["hermes", "qwen3_coder", "mistral", "llama3_json", "pythonic", "harmony"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ASK = [{"role": "user", "content": 'Weather? JSON:{"city": "Oslo"}'}]
SAID = "The tool says: 12 degrees"


@pytest.fixture(params=FAMILIES)
def served(request, families):
    return families[request.param]


def test_the_openai_client_loops(served):
    client = openai.OpenAI(base_url=served.v1, api_key=TOKEN, _strict_response_validation=True)
    with client.chat.completions.stream(model=served.name, messages=ASK, tools=[TOOL]) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    history = [*ASK, message.model_dump(exclude_none=True, exclude={"parsed"}), result]
    again = client.chat.completions.create(model=served.name, messages=_plain(history), tools=[TOOL])
    assert again.choices[0].message.content == SAID


def test_litellm_loops(served):
    ask = {"model": f"openai/{served.name}", "api_base": served.v1, "api_key": TOKEN, "tools": [TOOL]}
    message = litellm.completion(messages=ASK, **ask).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    assert litellm.completion(messages=[*ASK, message, result], **ask).choices[0].message.content == SAID


def test_the_anthropic_client_loops(served):
    client = anthropic.Anthropic(base_url=served.url, api_key=TOKEN, _strict_response_validation=True)
    ask = {"model": served.name, "max_tokens": 1000, "tools": [{"name": "get_weather", "input_schema": CITY}]}
    with client.messages.stream(messages=ASK, **ask) as stream:
        message = stream.get_final_message()
    call = message.content[-1]
    assert (message.stop_reason, call.name, call.input) == ("tool_use", "get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
    history = [*ASK, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=history, **ask).content[-1].text == SAID


def _plain(messages):
    """Drop what the streaming helper adds to calls (their parsed arguments)."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
    return messages
