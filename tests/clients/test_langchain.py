"""LangChain's OpenAI integration, unmodified."""

from typing import Literal

import pytest
from conftest import BOUNDED, TOKEN
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"12 degrees in {city}"


class Weather(BaseModel, extra="forbid"):
    """Weather of a city; every answer is short, whatever a model would write."""

    city: Literal["Oslo", "Bergen"]


def chat_of(served, max_tokens):
    fields = {"max_retries": 0, "max_tokens": max_tokens, "temperature": 0}
    return ChatOpenAI(model=served.name, base_url=served.v1, api_key=TOKEN, **fields)


def test_it_chats_and_streams(model):
    chat = chat_of(model, model.max_tokens)
    assert model.may_say(chat.invoke("Say hello.").content)
    assert model.may_say("".join(part.content for part in chat.stream("Say hello.")))


def test_a_loop_of_tools_ends_with_what_the_tool_said(scripted):
    chat = ChatOpenAI(model=scripted.name, base_url=scripted.v1, api_key=TOKEN).bind_tools([get_weather])
    messages = [HumanMessage('Weather? JSON:{"city": "Oslo"}')]
    asked = chat.invoke(messages)
    (call,) = asked.tool_calls
    result = get_weather.invoke(call["args"])
    answer = chat.invoke([*messages, asked, ToolMessage(result, tool_call_id=call["id"])])
    assert answer.content == "The tool says: 12 degrees in Oslo"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_object_of_the_class(model, method):
    structured = chat_of(model, BOUNDED).with_structured_output(Weather, method=method)
    answer = structured.invoke('Which city is Oslo? JSON:{"city": "Oslo"}')
    assert answer == Weather(city="Oslo") or (isinstance(answer, Weather) and not model.is_scripted)


def test_json_mode_gives_an_object_that_the_client_checks(scripted):
    """The mode alone bounds no answer: a small model may write JSON without an end."""
    structured = chat_of(scripted, BOUNDED).with_structured_output(Weather, method="json_mode")
    assert structured.invoke('Give the city as JSON. JSON:{"city": "Oslo"}') == Weather(city="Oslo")
