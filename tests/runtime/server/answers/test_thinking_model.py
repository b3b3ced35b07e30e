"""Budgets of thinking and formats behind it, with SmolLM2 whose template begins answers within thinking."""

import json
import sys
from pathlib import Path

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_server_model import QUESTION, runtime

pytestmark = pytest.mark.model
CLOSING_TOKENS = 3  # "</", "think", ">"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "<|im_start|>assistant\n<think>\n{% if enable_thinking is false %}\n</think>\n\n{% endif %}"
)
CITY = {"city": {"enum": ["Paris", "Rome"]}}
SCHEMA = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def client(smollm2_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinks")
    for file in smollm2_dir.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with runtime(folder, "--max-context", "1024", "--kv-cache-memory", "128MiB") as running:
        url = running.wait_ready()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            yield client


def ask(client, budget=None, **fields):
    extra = fields.pop("extra_body", {}) | ({} if budget is None else {"thinking_token_budget": budget})
    fields = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 40, **fields}
    answer = client.chat.completions.create(**fields, extra_body=extra)
    message = answer.choices[0].message
    details = answer.usage.completion_tokens_details
    return message, details.reasoning_tokens, answer.choices[0].finish_reason


@pytest.mark.parametrize("budget", [1, 12, 0])
def test_thinking_ends_exactly_at_its_budget(client, budget):
    message, tokens, _ = ask(client, budget, max_tokens=30, extra_body={"ignore_eos": True})
    assert tokens == budget + CLOSING_TOKENS
    assert bool(getattr(message, "reasoning_content", "")) == (budget > 0)
    assert message.content, "an answer comes behind it"


def test_thinking_that_is_not_ended_is_all_there_is(client):
    message, tokens, finish = ask(client, max_tokens=8, extra_body={"ignore_eos": True})
    assert (message.content, tokens, finish) == ("", 8, "length")
    assert message.reasoning_content


@pytest.mark.parametrize("budget", [10, 0])
def test_a_format_holds_behind_thinking(client, budget):
    message, tokens, finish = ask(client, budget, response_format=FORMAT)
    assert json.loads(message.content)["city"] in ("Paris", "Rome")
    assert (tokens, finish) == (budget + CLOSING_TOKENS, "stop")


def test_a_format_holds_at_once_where_the_prompt_has_closed_thinking(client):
    message, tokens, _ = ask(client, response_format=FORMAT, reasoning_effort="none")
    assert json.loads(message.content)["city"] in ("Paris", "Rome")
    assert tokens == 0
    assert "reasoning_content" not in (message.model_extra or {})


def test_a_required_call_comes_behind_thinking(client):
    tool = {"type": "function", "function": {"name": "tell", "parameters": SCHEMA, "strict": True}}
    message, tokens, finish = ask(client, 10, tools=[tool], tool_choice="required", max_tokens=90)
    (call,) = message.tool_calls
    assert (call.function.name, finish, tokens) == ("tell", "tool_calls", 10 + CLOSING_TOKENS)
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert message.reasoning_content


def test_a_stream_with_a_budget_equals_the_complete_answer(client):
    ask(client, 12)  # from now on both find the same prefix in the cache
    complete, _, _ = ask(client, 12)
    stream = client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=40, stream=True,
        extra_body={"thinking_token_budget": 12},
    )  # fmt: skip
    deltas = [chunk.choices[0].delta for chunk in stream]
    thinking = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert thinking == complete.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == complete.content
