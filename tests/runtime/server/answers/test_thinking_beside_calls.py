"""Thinking and calls in one answer: markers of thinking within a call's arguments belong to these."""

from __future__ import annotations

import json
import random

import pytest
from hostile_markup import check_order, division
from tool_answers import TOOLS, merged

from wisp_runtime.server.answers import reasoning
from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.answers.parts import CallArguments, CallStart, Part, Text, Thinking
from wisp_runtime.server.answers.tools.registry import FORMATS
from wisp_runtime.server.text.deltas import TextDelta

MARKERS = {format.name: (format.opening, format.closing) for format in reasoning.FORMATS if format.may_reopen}
CALLS = {
    "mistral": "[TOOL_CALLS]edit_file[ARGS]{}",
    "hermes": '<tool_call>\n{{"name": "edit_file", "arguments": {}}}\n</tool_call>',
    "llama3_json": '<|python_tag|>{{"name": "edit_file", "parameters": {}}}',
    "qwen3_coder": "<tool_call>\n<function=edit_file>\n<parameter=options>\n{}\n</parameter>\n</function>",
    "pythonic": "[edit_file(options={})]",
}


def parsed(thinking: str, tools: str, deltas: list[str]) -> list[Part]:
    """Return the merged parts of an answer that comes in ``deltas``."""
    parser = AnswerParser(
        reasoning.format_of(None, thinking).parser("<s>"), FORMATS[tools].parser(TOOLS), thinking_loop=None
    )
    parts = [part for text in deltas for part in parser.push(TextDelta(text)).parts]
    return merged([*parts, *parser.push(TextDelta("", "stop")).parts])


@pytest.mark.parametrize("thinking", MARKERS)
@pytest.mark.parametrize("tools", CALLS)
def test_markers_in_arguments_are_arguments_and_thinking_goes_on_behind_the_call(
    thinking: str, tools: str
) -> None:
    opening, closing = MARKERS[thinking]
    arguments = {"text": f"Use {opening}x{closing} here, or {opening.strip()}"}
    call = CALLS[tools].format(json.dumps(arguments))
    raw = f"{opening}a{closing}Hello\n{call}\n{opening}b{closing}So."
    parts = parsed(thinking, tools, [raw])
    (written,) = [json.loads(part.text) for part in parts if isinstance(part, CallArguments)]
    assert arguments in (written, written.get("options"))
    others = [part for part in parts if not isinstance(part, CallArguments)]
    assert others == [Thinking("a"), Text("Hello"), CallStart(0, "edit_file"), Thinking("b"), Text("So.")]
    assert parsed(thinking, tools, list(raw)) == parts


def test_a_stop_string_behind_the_last_call_is_not_what_ended_the_answer() -> None:
    parser = AnswerParser(None, FORMATS["hermes"].parser(TOOLS), 1)
    call = CALLS["hermes"].format("{}")
    answer = parser.push(TextDelta(call + call, "stop", stop="."))
    assert (answer.finish, answer.stop) == ("tool_calls", None)


@pytest.mark.parametrize("thinking", MARKERS)
@pytest.mark.parametrize("tools", CALLS)
def test_an_answer_has_the_same_parts_however_it_is_divided(thinking: str, tools: str) -> None:
    source, (opening, closing) = random.Random(17), MARKERS[thinking]
    call = CALLS[tools].format(json.dumps({"text": f"{opening}x{closing}"}))
    fragments = [opening, closing, call, call[:-3], opening[:3], closing[1:], "a", " ", "\n", "{", '"', "}"]
    for _ in range(60):
        raw = "".join(source.choices(fragments, k=source.randrange(1, 10)))
        parts = parsed(thinking, tools, [raw])
        check_order(parts)
        for _ in range(3):
            texts = division(raw, source)
            assert parsed(thinking, tools, texts) == parts, texts
