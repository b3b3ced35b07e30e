"""Instructor, unmodified: answers as objects, by tools and by JSON schemas."""

from typing import Literal

import instructor
import openai
import pytest
from conftest import BOUNDED, TOKEN
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    """A city; every answer is short, whatever a model would write."""

    name: Literal["Oslo", "Bergen"]
    is_capital: bool


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA", "TOOLS_STRICT"])
def test_an_answer_is_an_object(model, mode):
    client = instructor.from_openai(
        openai.OpenAI(base_url=model.v1, api_key=TOKEN), mode=getattr(instructor.Mode, mode)
    )
    city = client.chat.completions.create(
        model=model.name,
        response_model=City,
        max_retries=0,
        max_tokens=BOUNDED,
        temperature=0,
        **({} if mode == "JSON_SCHEMA" else {"parallel_tool_calls": False}),
        messages=[{"role": "user", "content": 'Oslo? JSON:{"name": "Oslo", "is_capital": true}'}],
    )
    assert isinstance(city, City)
    assert not model.is_scripted or city.model_dump() == {"name": "Oslo", "is_capital": True}
