"""Schemas of tools as any client may send them: an answer or a 400, within a second, never a 5xx."""

import time
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
from fake_engine import END, live_server, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp_runtime.server.answers.tools.registry import FORMATS
from wisp_runtime.server.answers.tools.scanners.schema_types import SchemaTypes

MAX_CPU_S = 1.0
MODES = ("auto", "required", "strict")
JSON_CALL = '{"name": "f", "KEY": {"a": 1, "b": "x"}}'
CALLS = {
    "hermes": f"<tool_call>\n{JSON_CALL.replace('KEY', 'arguments')}\n</tool_call>",
    "llama3_json": JSON_CALL.replace("KEY", "parameters"),
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": 1, "b": "x"}',
    "pythonic": '[f(a=1, b="x")]',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
    "<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>",
    "harmony": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1, "b": "x"}',
}
ITSELF = {"$ref": "#/$defs/J"}


def with_argument(schema, **definitions):
    return {"type": "object", "properties": {"a": schema}, "$defs": definitions}


def nested(key, depth=16):
    """A definition that refers to the next one twice, and so on: 2^depth paths."""
    layers = {f"L{n}": {key: [{"$ref": f"#/$defs/L{n + 1}"}] * 3} for n in range(depth)}
    return with_argument({"$ref": "#/$defs/L0"}, **layers, **{f"L{depth}": {"type": "string"}})


@pytest.fixture(scope="module")
def servers(tiny_model):
    """A server a format, whose model calls ``f``."""
    with ExitStack() as stack:
        running = {}
        for name, call in CALLS.items():
            server = stack.enter_context(live_server(tiny_model, tool_parser=name))
            server.engine.info = replace(server.engine.info, max_context=1 << 20)
            server.engine.script = lambda _, call=call: [*tokens_of(call), END]
            running[name] = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
        yield running


def ask(servers, name, mode, *schemas):
    """Send tools with the schemas; return the response and the CPU seconds that it took."""
    functions = [
        {"name": "f" if n == 0 else f"f{n}", "parameters": schema, "strict": mode == "strict"}
        for n, schema in enumerate(schemas)
    ]
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": "required" if mode == "required" else "auto",
        "max_tokens": 200,
    }
    begun_s = time.process_time()
    response = servers[name].post("/v1/chat/completions", json=body)
    return response, time.process_time() - begun_s


def is_sound(response):
    if response.status_code == 400:
        error = response.json()["error"]
        return error["param"].startswith("tools") or error["code"] in ("request_too_complex", "invalid_json")
    return response.status_code == 200


def test_each_format_has_a_call_here():
    assert CALLS.keys() == FORMATS.keys()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "schema",
    [
        with_argument(ITSELF, J={"anyOf": [ITSELF] * 3}),
        with_argument(ITSELF, J={"anyOf": [{"anyOf": [ITSELF] * 3}] * 3, "allOf": [ITSELF] * 3}),
        nested("anyOf"),
        nested("oneOf"),
        nested("allOf"),
    ],
    ids=["itself", "itself twice", "anyOf", "oneOf", "allOf"],
)
def test_a_schema_of_many_paths_costs_no_more_than_its_size(servers, name, mode, schema):
    response, cpu_s = ask(servers, name, mode, schema)
    assert is_sound(response), response.text
    assert cpu_s < MAX_CPU_S


def test_arguments_that_repeat_large_definitions_are_refused_in_time(servers):
    schema = {
        "type": "object",
        "properties": {f"p{n}": {"$ref": "#/$defs/text"} for n in range(200)},
        "$defs": {"text": {"type": ["string", "null"]}, "large": {"const": "x" * 100_000}},
    }
    for name in ("qwen3_coder", "pythonic"):
        response, cpu_s = ask(servers, name, "required", schema)
        assert response.status_code == 400
        assert "combine to too large a grammar" in response.json()["error"]["message"]
        assert cpu_s < MAX_CPU_S


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "schema",
    [
        with_argument({"enum": None}),
        with_argument({"enum": "abc", "type": ["string", "integer"]}),
        with_argument({"enum": {"a": 1}}),
        with_argument({"x-guidance": 5}),
        with_argument({"minLength": "0}) /", "type": "string"}),
        with_argument({"pattern": "(", "type": "string"}),
        with_argument({"type": [{"a": 1}, None]}),
        with_argument({"anyOf": []}),
        {"properties": {"a": 7}, "required": [{"a": 1}, 5]},
        {"properties": [1], "required": "a"},
        {"x-guidance": 5},
        {"x-guidance": None},
        {"x-guidance": {"whitespace_flexible": "x"}},
    ],
    ids=str,
)
def test_a_wrong_schema_is_refused_or_ignored_but_never_fails(servers, name, mode, schema):
    response, _ = ask(servers, name, mode, schema)
    assert is_sound(response), response.text


WRONG = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just([]) | st.just({})
NAMES = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])
REFERENCES = st.sampled_from(["#/$defs/J", "#/$defs/K", "#", "#/properties/a", "#/nothing", "x", ""])
KEYWORDS = {
    "type": NAMES | st.lists(NAMES, max_size=3) | WRONG,
    "enum": st.lists(WRONG, max_size=3) | WRONG,
    "const": WRONG,
    "pattern": st.sampled_from(["^a+$", "(", "a|b", "\\d", "/"]) | WRONG,
    "minLength": WRONG,
    "maxLength": WRONG,
    "minimum": WRONG,
    "maxItems": WRONG,
    "format": st.sampled_from(["date", "uuid", "nothing"]) | WRONG,
    "required": st.lists(st.sampled_from("ab"), max_size=2) | WRONG,
    "additionalProperties": WRONG,
    "x-guidance": WRONG,
    "$ref": REFERENCES | WRONG,
}


def keywords_of(inner):
    lists, maps = st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    combined = dict.fromkeys(("anyOf", "oneOf", "allOf"), lists | WRONG)
    combined |= {"properties": maps | WRONG, "items": inner, "not": inner}
    every = KEYWORDS | combined
    return st.lists(st.sampled_from(sorted(every)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: every[name] for name in names})
    )


SCHEMAS = st.recursive(st.booleans() | keywords_of(st.just({})), keywords_of, max_leaves=8)
PARAMETERS = st.builds(
    lambda schema, a, j, k: {"properties": {"a": a}} | schema | {"$defs": {"J": j, "K": k}},
    SCHEMAS.filter(lambda schema: isinstance(schema, dict)),
    *[SCHEMAS] * 3,
)


@settings(max_examples=80)
@given(PARAMETERS, st.sampled_from(sorted(FORMATS)), st.sampled_from(MODES))
def test_no_schema_of_a_tool_fails_the_server_or_holds_it(servers, schema, name, mode):
    response, cpu_s = ask(servers, name, mode, schema)
    assert is_sound(response), response.text
    assert cpu_s < MAX_CPU_S


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"$ref": "#/$defs/text"}, {"string"}),
        ({"$ref": "#/$defs/text", "enum": [1, "a"]}, {"string"}),  # both hold
        (
            {"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/text"}, {"type": "null"}]},
            {"string", "null"},
        ),
        ({"allOf": [{"enum": [True, "a"]}, {"$ref": "#/$defs/text"}]}, {"string"}),
        ({"oneOf": [{"const": 1.5}, {"type": "integer"}]}, {"number"}),
        ({"type": "string", "anyOf": [{"$ref": "#/$defs/loop"}]}, {"string"}),  # a loop allows every type
    ],
)
def test_types_of_references_and_alternatives_are_those_that_they_allow(schema, types):
    root = {"$defs": {"text": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}}
    assert SchemaTypes(root).of(schema) == types
