"""Thinking, and structured output beside it, by the official anthropic client."""

import anthropic
import httpx
import pydantic
import pytest
from fake_engine import END, MAX_CONTEXT, live_server, tokens_of, write_model

ASK = [{"role": "user", "content": "hi"}]
THINKS = (
    "{% for message in messages %}"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}"
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
ANSWER = "<think>\nHm: é.\n</think>\n\nYes."
ENABLED = {"type": "enabled", "budget_tokens": 20}
OMITTED = {"type": "adaptive", "display": "omitted"}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    with live_server(write_model(tmp_path_factory.mktemp("models") / "thinks", THINKS)) as running:
        yield running


@pytest.fixture
def client(thinker):
    thinker.engine.script = lambda _: [*tokens_of(ANSWER), END]
    settings = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=thinker.url, api_key="unused", **settings) as client:
        yield client


def create(client, **fields):
    return client.messages.create(**{"model": "tiny", "max_tokens": 100, "messages": ASK, **fields})


def prompt_of(server):
    return bytes(token for token in server.engine.submitted[-1].prompt if token < 256).decode()


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "adaptive"}}, {"thinking": ENABLED}])
def test_thinking_is_a_block_before_the_text(client, fields):
    answer = create(client, **fields)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("Hm: é.", "Yes.")
    assert answer.content[0].signature
    assert answer.usage.output_tokens_details.thinking_tokens == len(ANSWER.encode()) - len("\n\nYes.")


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_streamed_thinking_is_that_which_is_not_streamed(client, display):
    fields = {"thinking": {"type": "adaptive", "display": display}}
    complete = create(client, **fields)
    with client.messages.stream(model="tiny", max_tokens=100, messages=ASK, **fields) as stream:
        kinds = {event.type for event in stream}
        accumulated = stream.get_final_message()
    assert accumulated.to_dict()["content"] == complete.to_dict()["content"]
    assert accumulated.usage == complete.usage
    assert {"signature", "text"} <= kinds
    assert ("thinking" in kinds) is (display == "summarized")


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, OMITTED])
def test_thinking_that_is_sent_back_is_read_shown_or_not(client, thinker, thinking):
    answer = create(client, thinking=thinking)
    assert answer.content[0].thinking == ("" if thinking is OMITTED else "Hm: é.")
    create(client, thinking=thinking, messages=[*ASK, answer.to_param(), *ASK])
    assert prompt_of(thinker) == "hi\n<think>Hm: é.</think>Yes.\nhi\n"


def test_a_budget_ends_the_thinking_and_disabled_prevents_it(client, thinker):
    create(client, thinking=ENABLED)
    assert thinker.engine.submitted[-1].thinking.max_tokens == 20
    create(client, thinking={"type": "disabled"})
    assert prompt_of(thinker).endswith("<think></think>")


def test_thinking_beyond_the_limit_of_tokens_is_a_block_that_was_cut(client):
    answer = create(client, max_tokens=10)
    assert ([block.type for block in answer.content], answer.stop_reason) == (["thinking"], "max_tokens")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_thinking_that_repeats_itself_ends_the_answer_as_cut(client, thinker, is_streamed):
    thinker.engine.script = lambda _: [*tokens_of("<think>" + "Or not? " * 60), END]
    fields = {"model": "tiny", "max_tokens": 500, "messages": ASK}
    if is_streamed:
        with client.messages.stream(**fields) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**fields)
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens < MAX_CONTEXT - answer.usage.input_tokens


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("is_thinking", [True, False])
def test_an_answer_in_a_prescribed_format_is_parsed(client, thinker, is_thinking):
    written = '{"name": "Ulm", "people": 130000}'
    thinker.engine.script = lambda _: [
        *tokens_of(f"<think>Hm.</think>{written}" if is_thinking else written),
        END,
    ]
    answer = client.messages.parse(model="tiny", max_tokens=100, messages=ASK, output_format=City)
    assert answer.parsed_output == City(name="Ulm", people=130000)
    assert thinker.engine.submitted[-1].constraint is not None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "objekt"}}}},
            "'output_config.format.schema': Invalid type: objekt, at #/type",
        ),
        ({"output_format": {"type": "json_object"}}, "output_format.type"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "not both",
        ),
    ],
)
def test_a_format_that_cannot_be_prescribed_is_refused(thinker, fields, says):
    body = {"model": "tiny", "max_tokens": 100, "messages": ASK, **fields}
    answer = httpx.post(f"{thinker.url}/v1/messages", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
