"""LangChain's OpenAI integration, unmodified."""

import pytest
from conftest import TOKEN
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"12 degrees in {city}"


class Weather(BaseModel):
    """Weather of a city."""

    city: str = Field(max_length=12)  # so short that a small model ends it, too


@pytest.fixture
def chat(model):
    return ChatOpenAI(
        model=model.name, base_url=model.v1, api_key=TOKEN, max_retries=0, max_tokens=model.max_tokens
    )


def test_it_chats_and_streams(chat):
    assert chat.invoke("Say hello.").content
    parts = list(chat.stream("Say hello."))
    assert "".join(part.content for part in parts)


def test_a_loop_of_tools_ends_with_what_the_tool_said(scripted):
    chat = ChatOpenAI(model=scripted.name, base_url=scripted.v1, api_key=TOKEN).bind_tools([get_weather])
    messages = [HumanMessage('Weather? JSON:{"city": "Oslo"}')]
    asked = chat.invoke(messages)
    (call,) = asked.tool_calls
    result = get_weather.invoke(call["args"])
    answer = chat.invoke([*messages, asked, ToolMessage(result, tool_call_id=call["id"])])
    assert answer.content == "The tool says: 12 degrees in Oslo"


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output_is_an_object_of_the_class(chat, method):
    structured = chat.with_structured_output(Weather, method=method)
    if method == "json_mode":
        structured = chat.with_structured_output(Weather, method=method, include_raw=True)
        assert "raw" in structured.invoke('Give the city of Oslo as JSON. JSON:{"city": "Oslo"}')
        return
    assert isinstance(structured.invoke('Which city is Oslo? JSON:{"city": "Oslo"}'), Weather)
