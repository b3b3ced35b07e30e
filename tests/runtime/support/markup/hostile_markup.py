"""Random answers made of markers, halves of markers, calls, JSON, code and Unicode, and their divisions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tool_answers import ANSWERS, TOOLS, merged

from wisp_runtime.server.answers.parts import CallArguments, CallStart, Part
from wisp_runtime.server.answers.tools.format import Tool
from wisp_runtime.server.answers.tools.registry import FORMATS

MARKERS = (
    "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "[TOOL_CALLS]",
    "[CALL_ID]", "[ARGS]", "<|python_tag|>", "<|python_start|>", "<|python_end|>", "<|start|>", "<|channel|>",
    "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
)  # fmt: skip
_FRAGMENTS = (
    "get_weather",
    "list_files",
    "edit_file",
    "city",
    "analysis",
    "final",
    "commentary to=functions.list_files",
    " to=",
    '{"name": "list_files", "arguments": {}}',
    '{"name": "get_weather", "parameters": {"city": "',
    '"}}',
    '{"arguments": {"a": [1, {"b": "}"}]}, "name": "x"}',
    '{"name": ',
    '"arguments"',
    '"parameters": ',
    '"name"',
    "list_files()",
    "[get_weather(city='",
    "')]",
    "[list_files(), ",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    '"',
    "'",
    "\\",
    '\\"',
    "\\n",
    "\\ud83d",
    ": ",
    ", ",
    "; ",
    "=",
    ">",
    "<",
    "\n",
    " ",
    "\t",
    "\r\n",
    "1",
    "-1.5e3",
    "true",
    "None",
    "null",
    "é",
    "🏔",
    "\x00",
    "\x1b",
    "\u2028",
    "á",
    "text ",
    "```json\n",
)


def hostile_answer(source: random.Random, name: str) -> str:
    """Return a random answer: fragments, markers complete and cut short, and real answers of a format."""
    made, own = [], [answer.raw for answer in ANSWERS if answer.format == name]
    for _ in range(source.randrange(1, 14)):
        kind = source.randrange(6)
        if kind == 0:
            marker = source.choice(MARKERS)
            made.append(marker[: source.randrange(1, len(marker) + 1)])
        elif kind == 1:
            made.append(source.choice(MARKERS))
        elif kind == 2:
            raw = source.choice(own if source.random() < 0.7 else [answer.raw for answer in ANSWERS])
            start = source.choice((0, 0, source.randrange(len(raw))))
            made.append(raw[start : source.choice((len(raw), source.randrange(len(raw) + 1)))])
        else:
            made.append(source.choice(_FRAGMENTS))
    return "".join(made)


def division(raw: str, source: random.Random) -> list[str]:
    """Divide an answer at random places: few, many, or behind each character."""
    cuts = source.choice((1, 2, 5, len(raw) // 3, len(raw)))
    places = range(len(raw)) if cuts == len(raw) else [source.randrange(len(raw) + 1) for _ in range(cuts)]
    ends = sorted({0, len(raw), *places})
    return [raw[start:end] for start, end in pairwise(ends)]


def parse(name: str, texts: Iterable[str], tools: Sequence[Tool] = TOOLS) -> list[Part]:
    """Return the merged parts of an answer that comes in ``texts``."""
    parser = FORMATS[name].parser(tools)
    parts = [part for text in texts for part in parser.push(text)]
    return merged([*parts, *parser.finish()])


def check_order(parts: list[Part]) -> None:
    """Check that calls are numbered from 0 and that arguments follow the start of their own call."""
    assert [part.call for part in parts if isinstance(part, CallStart)] == list(
        range(sum(isinstance(part, CallStart) for part in parts))
    )
    for before, part in zip([None, *parts], parts, strict=False):
        if isinstance(part, CallArguments):
            assert part.text
            assert isinstance(before, CallStart)
            assert before.call == part.call
        elif not isinstance(part, CallStart):
            assert part.text
