"""Grammars of tool calls: what they allow is what the parsers find, with arguments that are valid."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from grammar_walk import ByteVocabulary
from hostile_markup import MARKERS, parse
from llguidance import LLMatcher
from tool_answers import TOOLS, text_of
from valid_calls import CASES, STRICT, check_walks, grammar_of

from wisp_runtime.server.answers.tools.format import Tool
from wisp_runtime.server.answers.tools.grammar import tool_grammar
from wisp_runtime.server.answers.tools.registry import FORMATS

WALKS = int(os.environ.get("WISP_TEST_TOOL_WALKS", "6"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_answer_that_a_grammar_allows_has_valid_calls(case):
    answers, _ = check_walks(case, WALKS, random.Random(str(case)))
    assert answers


WEATHER = '{"city": "Paris", "days": 3}'
NAMED = f'{{"name": "get_weather", "KEY": {WEATHER}}}'
NO_ARGUMENTS = '{"name": "list_files", "KEY": {}}'
XML = (
    "\n<function=get_weather>\n<parameter=city>\nPar</b>is\n</parameter>\n"
    "<parameter=units>\nnull\n</parameter>\n</function>\n</tool_call>"
)
CALLS = {
    # a first call, what is between two, and a second one
    "hermes": (f"<tool_call>\n{NAMED}\n</tool_call>", "\n", f"<tool_call>\n{NO_ARGUMENTS}\n</tool_call>"),
    "qwen3_coder": (
        f"<tool_call>{XML}",
        "\n",
        "<tool_call>\n<function=list_files>\n</function>\n</tool_call>",
    ),
    "mistral": (
        f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}",
        "",
        "[TOOL_CALLS]list_files[CALL_ID]abcdefghi[ARGS]{}",
    ),
    "llama3_json": (NAMED, "; ", NO_ARGUMENTS),
    "pythonic": ('[get_weather(city="Paris", units=null)', ", ", "list_files()"),
    "harmony": (
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{WEATHER}",
        "",
        "",
    ),
}
MARKED_BY_TOKENS = ("harmony", "mistral")


def calls_as_written(name):
    """Return two calls, what is between them, and what ends them."""
    key = "parameters" if name == "llama3_json" else "arguments"
    return *(text.replace("KEY", key) for text in CALLS[name]), "]" if name == "pythonic" else ""


@pytest.mark.parametrize("is_required", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_as_models_write_them_are_allowed_and_others_are_not(name, is_required):
    first, between, second, end = calls_as_written(name)
    for is_parallel in (False, True):
        vocabulary, grammar = grammar_of(
            name, name in MARKED_BY_TOKENS, is_required=is_required, is_parallel=is_parallel
        )
        assert vocabulary.accepts(grammar, first + end)
        unknown = first.replace("get_weather", "get_nothing") + end
        is_text = text_of(parse(name, [unknown], STRICT)) == unknown
        assert (is_text and not is_required) or not vocabulary.accepts(grammar, unknown)
        assert not vocabulary.accepts(grammar, first.replace("city", "days", 1) + end)
        assert vocabulary.accepts(grammar, "Hello, { <b>\n [1]") is (not is_required and name != "harmony")
        if second and is_parallel:
            assert vocabulary.accepts(grammar, first + between + second + end)


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_is_all_where_calls_are_not_parallel(name):
    first, between, second, end = calls_as_written(name)
    vocabulary, grammar = grammar_of(name, name in MARKED_BY_TOKENS, is_required=True, is_parallel=False)
    assert not vocabulary.accepts(grammar, first + between + (second or first) + end)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_text_may_be_around_calls_that_are_not_required(name):
    first, _, second, _ = calls_as_written(name)
    vocabulary, grammar = grammar_of(name, False, is_required=False, is_parallel=True)
    assert vocabulary.accepts(grammar, f"I look.\n{first}\nAnd:\n{second}\nDone.")
    assert not vocabulary.accepts(grammar, f"I look.\n{first[:-20]}")


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_lines_between_thinking_and_a_required_call_may_be_empty(name):
    first, _, _, end = calls_as_written(name)
    vocabulary, grammar = grammar_of(name, name in MARKED_BY_TOKENS, is_required=True, is_parallel=True)
    assert vocabulary.accepts(grammar, f"\n\n{first}{end}")
    assert not vocabulary.accepts(grammar, f"\n\n\n{first}{end}")


@pytest.mark.parametrize("case", [case for case in CASES if not case[2]], ids=str)
def test_a_long_text_does_not_outgrow_the_lexer(case):
    name, is_special, _, is_parallel = case
    source = random.Random(3)
    beginnings = [marker[:length] for marker in MARKERS for length in range(1, len(marker) - 2)]
    beginnings += ['{"a', "\n  [ x", '\n{ "na', "\n[get_wea", "words ", "\n\n", *'abc {}[]()<"é']
    text = "".join(source.choices(beginnings, k=2000))
    vocabulary, grammar = grammar_of(name, is_special, is_required=False, is_parallel=is_parallel)
    head = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert vocabulary.accepts(grammar, head + text)


def test_a_long_value_does_not_outgrow_the_lexer():
    source = random.Random(3)
    value = "".join(source.choices(["</param", "\n", "nul", "12", "[", '"', "é", "words ", "<"], k=4000))
    vocabulary, grammar = grammar_of("qwen3_coder", False, is_required=True, is_parallel=True)
    begin = "<tool_call>\n<function=shape>\n<parameter=code>\nAB-12\n</parameter>\n<parameter=level>\nlow\n"
    begin += f"</parameter>\n<parameter=any>\nx{value}\n</parameter>\n"
    assert vocabulary.accepts(grammar, f"{begin}</function>\n</tool_call>")


def test_a_list_is_mistrals_form_where_its_tokenizer_has_no_token_for_arguments():
    vocabulary, grammar = grammar_of("mistral", False, is_required=True, is_parallel=True)
    assert vocabulary.accepts(grammar, '[TOOL_CALLS][{"name": "list_files", "arguments": {}}]')


def test_only_strict_or_required_calls_have_a_grammar():
    asked = {"is_parallel": True, "special": {}}
    assert tool_grammar(FORMATS["hermes"], TOOLS, is_required=False, **asked) is None
    assert tool_grammar(FORMATS["hermes"], TOOLS, is_required=True, **asked) is not None
    assert tool_grammar(FORMATS["hermes"], STRICT, is_required=False, **asked) is not None


@pytest.mark.parametrize(
    ("parameters", "allowed", "refused"),
    [
        ({}, "{}", '{"a": 1}'),  # a function without parameters
        ({"properties": {"a": {}}}, '{"a": {"b": 1}}', '{"b": 1}'),
        ({"properties": {"a": {"type": "object"}}}, '{"a": {"b": 1}}', '{"a": 1}'),
        ({"properties": {"a": {"properties": {"b": {}}}}}, '{"a": {"b": 1}}', '{"a": {"c": 1}}'),
        ({"additionalProperties": {"type": "integer"}}, '{"b": 1}', '{"b": "1"}'),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"required": ["b"]}}}, '{"b": 1}', "{}"),
    ],
)
def test_arguments_are_those_that_the_schema_names(parameters, allowed, refused):
    tool = Tool("f", parameters)
    grammar = tool_grammar(FORMATS["llama3_json"], [tool], is_required=True, is_parallel=False, special={})
    head = '{"name": "f", "parameters": '
    assert ByteVocabulary().accepts(grammar, head + allowed + "}")
    assert not ByteVocabulary().accepts(grammar, head + refused + "}")


@pytest.mark.parametrize("name", FORMATS)
def test_what_llguidance_cannot_hold_is_refused_of_strict_tools_alone(name):
    tool = Tool("f", {"properties": {"a": {"type": "object", "not": {"const": {}}}}})
    asked = {"is_required": True, "is_parallel": True, "special": {}}
    strict = tool_grammar(FORMATS[name], [replace(tool, is_strict=True)], **asked)
    lenient = tool_grammar(FORMATS[name], [tool], **asked)
    tokenizer = ByteVocabulary().tokenizer
    assert 'Unimplemented keys: ["not"]' in LLMatcher.validate_grammar(strict, tokenizer)
    assert LLMatcher.validate_grammar(lenient, tokenizer) == ""
