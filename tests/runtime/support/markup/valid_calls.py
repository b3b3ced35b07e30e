"""Strict tools, and random answers by the grammars of their calls."""

from __future__ import annotations

import random
from dataclasses import replace

import jsonschema
from grammar_walk import ByteVocabulary, random_answer
from hostile_markup import MARKERS, parse
from tool_answers import TOOLS, calls_of, text_of

from wisp_runtime.server.answers.tools.format import Tool
from wisp_runtime.server.answers.tools.grammar import tool_grammar
from wisp_runtime.server.answers.tools.registry import FORMATS

SHAPES = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        "short": {"type": "string", "minLength": 2, "maxLength": 5},
        "level": {"enum": ["low", "high", 3, None]},
        "count": {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string"}]},
        "when": {"$ref": "#/$defs/when"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "any": {},
    },
    "required": ["code", "level"],
    "additionalProperties": False,
    "$defs": {"when": {"type": ["string", "null", "boolean"]}},
}
STRICT = tuple(replace(tool, is_strict=True) for tool in (*TOOLS, Tool("shape", SHAPES)))
SCHEMAS = {tool.name: tool.parameters for tool in STRICT}
SNIPPETS = (
    *(*MARKERS, "\n</parameter>\n", "\n</function>\n</tool_call>", '"', "}", "]", "é", "null", "12", "true"),
    *("\n{", "\n[", '{"name": "list_files", "parameters": {', "[list_files()", "list_files", "AB-12"),
    *("final", "assistant", ">\n<parameter=days>\n"),
)
CASES = [
    (name, is_special, is_required, is_parallel)
    for name in FORMATS
    for is_special in ((True,) if name == "harmony" else (False, True))  # Harmony's markers are tokens
    for is_required in (False, True)
    for is_parallel in (False, True)
]
"""Format, whether its markers are special tokens, whether a call is required, whether several may come."""


def grammar_of(name: str, is_special: bool, **asked: bool) -> tuple[ByteVocabulary, str]:
    """Return a vocabulary and the grammar of the strict tools' calls."""
    vocabulary = ByteVocabulary(FORMATS[name].markers if is_special else ())
    grammar = tool_grammar(FORMATS[name], STRICT, special=vocabulary.ids, **asked)
    assert grammar is not None
    return vocabulary, grammar


def check_walks(case: tuple[str, bool, bool, bool], walks: int, source: random.Random) -> tuple[int, int]:
    """Walk a case's grammar; check the calls in the answers, and return the counts of both."""
    name, is_special, is_required, is_parallel = case
    vocabulary, grammar = grammar_of(name, is_special, is_required=is_required, is_parallel=is_parallel)
    answers = calls = 0
    for _ in range(walks):
        raw = random_answer(vocabulary, grammar, source, SNIPPETS)
        if raw is None:
            continue
        parts = parse(name, [raw], STRICT)
        called = calls_of(parts)
        for function, arguments in called:
            jsonschema.validate(arguments, SCHEMAS[function])
        assert is_parallel or len(called) <= 1, raw
        if is_required:
            assert called, raw
            assert text_of(parts) == "", raw
        answers, calls = answers + 1, calls + len(called)
    return answers, calls


def walk(name: str, walks: int, source: random.Random) -> tuple[int, int]:
    """Walk the grammars of a format; return the counts of answers and calls."""
    cases = [case for case in CASES if case[0] == name]
    counts = [check_walks(case, walks // len(cases), source) for case in cases]
    return sum(answers for answers, _ in counts), sum(calls for _, calls in counts)
