"""Agents, unmodified: pydantic-ai with its own tools and with those of an MCP server, and a loop by hand."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Literal

import openai
import pytest
from conftest import BOUNDED, TOKEN
from mcp import ClientSession, StdioServerParameters, stdio_client
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MCP_SERVER = str(Path(__file__).with_name("mcp_weather.py"))
ASK = 'Weather? JSON:{"city": "Oslo"}'
KINDS = [OpenAIChatModel, OpenAIResponsesModel]


class Weather(BaseModel, extra="forbid"):
    """Weather of a city; every answer is short, whatever a model would write."""

    city: Literal["Oslo", "Bergen"]


def agent_of(kind, served, settings=None, **fields):
    provider = OpenAIProvider(base_url=served.v1, api_key=TOKEN)
    settings = {"max_tokens": served.max_tokens, "temperature": 0, **(settings or {})}
    return Agent(kind(served.name, provider=provider), model_settings=settings, **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_answers(kind, model):
    assert model.may_say(agent_of(kind, model).run_sync("Say hello.").output)


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_calls_its_tool(kind, scripted):
    agent = agent_of(kind, scripted)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        return f"12 degrees in {city}"

    assert agent.run_sync(ASK).output == "The tool says: 12 degrees in Oslo"


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_gives_an_object(kind, model):
    one_call = {"max_tokens": BOUNDED, "parallel_tool_calls": False}
    answer = agent_of(kind, model, one_call, output_type=Weather, retries=0).run_sync(ASK)
    assert answer.output.city == "Oslo" or not model.is_scripted


def test_a_loop_over_an_mcp_server_ends_with_what_its_tool_said(scripted):
    assert asyncio.run(_loop(scripted)) == "The tool says: 12 degrees in Oslo"


async def _loop(served):
    """Ask, call what is called, and ask again until the answer is text."""
    client = openai.AsyncOpenAI(base_url=served.v1, api_key=TOKEN, _strict_response_validation=True)
    parameters = StdioServerParameters(command=sys.executable, args=[MCP_SERVER])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = [_as_openai(tool) for tool in (await session.list_tools()).tools]
        messages = [{"role": "user", "content": ASK}]
        while True:
            answer = await client.chat.completions.create(model=served.name, messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = await session.call_tool(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result.content[0].text})


def _as_openai(tool):
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}
