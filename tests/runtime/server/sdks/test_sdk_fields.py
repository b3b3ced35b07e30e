"""Each field of the official clients' requests works or is refused by its name, by their strict types.

The tables are in ``tests/runtime/support/sdk_fields/``, and ``docs/api-fields.md`` is made of them. A field
*works* if, with it, the engine is asked something else or the client gets something else; *accepted* is one
with which both are the same, for the reason that its row gives; *400* is an error that names it.
"""

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import anthropic
import openai
import pytest
from calls import CALLS
from fake_engine import END, START, live_server, tokens_of, write_model
from field_row import REFUSED, WORKS, Outcome, answer_of, arguments
from tokenizers import Tokenizer, processors

from wisp_runtime.server.parsing.anthropic.requests import MessagesRequest
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.parsing.pooling_requests import EmbeddingRequest
from wisp_runtime.server.parsing.responses.request import ResponsesRequest

TEMPLATE = (
    "{% for text in documents or [] %}{{ text.text }}{% endfor %}"
    "{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
MODELS = {
    "chat.completions.create": ChatRequest,
    "completions.create": CompletionRequest,
    "responses.create": ResponsesRequest,
    "embeddings.create": EmbeddingRequest,
    "messages.create": MessagesRequest,
}


def script(submit):
    """Think, and call a tool twice if there is one; the answer has a special token and repeats a letter."""
    prompt = bytes(token for token in submit.prompt if token < 256).decode()
    if submit.constraint is not None:
        return [*tokens_of("{}"), END]
    said = CALL * 2 if "get_weather" in prompt else ""
    thinks = "<think>I think.</think>" if "user" in prompt and "</think>" not in prompt else ""
    return [*tokens_of(f"{thinks}{said}Hello"), START, *tokens_of(", world"), END]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = write_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", START)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    with live_server(directory, alias="other", tool_parser="hermes") as running:
        running.engine.script = script
        running.engine.info = replace(running.engine.info, max_context=4096)
        yield running


@pytest.fixture(scope="module")
def clients(server):
    """One client of each kind: strict, and not."""
    settings = {"api_key": "unused", "max_retries": 0}
    with ExitStack() as open_clients:
        yield {
            (kind, is_strict): open_clients.enter_context(
                kind(base_url=url, _strict_response_validation=is_strict, **settings)
            )
            for kind, url in ((openai.OpenAI, f"{server.url}/v1"), (anthropic.Anthropic, server.url))
            for is_strict in (True, False)
        }


@pytest.fixture(scope="module")
def plain():
    """Observations of requests without the field of a row: many rows share one."""
    return {}


def observed(call, client, server, given):
    """Return what the engine was asked and what the client got."""
    if call.stored:
        stored = client.responses.create(**call.stored)
        server.wait_until(lambda: client.responses.retrieve(stored.id).status == "completed")
        given = {"response_id": stored.id} | given
    server.engine.submitted.clear()
    answer = answer_of(call.of(client)(**given))
    return [asked_of(submit, call.client) for submit in server.engine.submitted], answer


def asked_of(submit, client):
    asked = asdict(submit) | {"request_id": ""}
    if client is anthropic.Anthropic:
        asked["sampling"] |= {"seed": 0}  # a request has no field for it
    return asked


def outcome(call, row, clients, server, plain):
    """Return what becomes of a field."""
    client = clients[call.client, row.is_strict]
    given = arguments(row, call.base, is_with=False)
    key = (call.client, call.name, row.is_strict, json.dumps(given))
    if key not in plain:
        plain[key] = observed(call, client, server, given)
    try:
        with_it = observed(call, client, server, arguments(row, call.base, is_with=True))
    except (openai.BadRequestError, anthropic.BadRequestError) as error:
        return REFUSED if names(error, row.parameter) else error
    return WORKS if with_it != plain[key] else Outcome.SAME


def names(error, parameter):
    """Return whether an error is about a parameter, and says so."""
    if isinstance(error, openai.BadRequestError):
        return (error.param or "").split(".")[0] == parameter
    return parameter in error.message


@pytest.mark.parametrize(
    ("call", "row"),
    [
        pytest.param(call, row, id=f"{call.client.__name__}-{call.name}-{row.name}-{number}")
        for call in CALLS
        for number, row in enumerate(call.rows)
    ],
)
def test_a_field_works_or_is_refused_by_its_name(clients, server, plain, call, row):
    assert outcome(call, row, clients, server, plain) is row.outcome


@pytest.mark.parametrize("call", [call for call in CALLS if not all(row.is_strict for row in call.rows)])
def test_a_field_that_is_not_parsed_strictly_would_not_be(clients, server, call):
    for row in call.rows:
        if not row.is_strict:
            with pytest.raises(openai.APIResponseValidationError):
                observed(call, clients[call.client, True], server, arguments(row, call.base, is_with=True))


@pytest.mark.parametrize("call", [call for call in CALLS if not call.rows], ids=lambda call: call.name)
def test_a_call_without_fields_is_answered(clients, server, call):
    assert observed(call, clients[call.client, True], server, call.base)[1] or call.name == "responses.delete"


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.client.__name__}-{call.name}")
def test_every_field_of_the_clients_types_is_in_the_table(call):
    rows = {row.name for row in call.rows}
    assert call.fields() | call.nested_fields() == {row.name for row in call.rows if not row.is_extension}, (
        "a new version of the client has other fields: add rows, or take them out"
    )
    assert all(row.note or row.outcome is not Outcome.SAME for row in call.rows), rows


@pytest.mark.parametrize("call", [call for call in CALLS if call.name in MODELS], ids=lambda call: call.name)
def test_every_field_that_is_read_here_is_in_the_table(call):
    assert {field.alias or name for name, field in MODELS[call.name].model_fields.items()} - {
        row.parameter for row in call.rows
    } == set()


def test_the_page_is_the_table():
    root = Path(__file__).parents[4]
    sys.path.insert(0, str(root / "tests/bench/pages"))
    import api_fields

    assert (root / "docs/api-fields.md").read_text() == api_fields.page(), (
        "run tests/bench/pages/api_fields.py"
    )
