"""LiteLLM, unmodified, as people put it in front of their models."""

import json

import litellm
import pytest
from conftest import TOKEN

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(model, text, **fields):
    messages = [{"role": "user", "content": text}]
    return litellm.completion(
        model=f"openai/{model.name}",
        api_base=model.v1,
        api_key=TOKEN,
        messages=messages,
        max_tokens=model.max_tokens,
        **fields,
    )


def test_it_chats(model):
    answer = ask(model, "Say hello.", temperature=0)
    assert model.may_say(answer.choices[0].message.content)
    assert answer.usage.completion_tokens > 0


def test_it_streams(model):
    chunks = list(ask(model, "Say hello.", stream=True, temperature=0))
    assert model.may_say("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_it_is_given_calls(scripted):
    answer = ask(scripted, 'Weather? JSON:{"city": "Oslo"}', tools=[TOOL], tool_choice="auto")
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})


def test_its_embeddings_have_the_size_of_the_model(smollm2):
    answer = litellm.embedding(
        model=f"openai/{smollm2.name}",
        api_base=smollm2.v1,
        api_key=TOKEN,
        input=["a", "b"],
        encoding_format="float",
    )
    assert [len(entry["embedding"]) for entry in answer.data] == [576, 576]


def test_an_error_is_its_own_exception(model):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask(model, "hi", temperature=9)
