"""Answers with tool calls as models of each family write them, and the calls that are in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wisp_runtime.server.answers.parts import CallArguments, CallStart, Part, Text, Thinking
from wisp_runtime.server.answers.tools.format import Tool

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"anyOf": [{"enum": ["celsius", "fahrenheit"]}, {"type": "null"}]},
    },
    "required": ["city"],
}
EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string"},
        "options": {"type": "object"},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "is_new": {"type": "boolean"},
    },
    "required": ["path", "text"],
}
TOOLS = (Tool("get_weather", WEATHER), Tool("edit_file", EDIT), Tool("list_files"))
"""Tools of the answers below."""


def openai_tools(tools: Sequence[Tool] = TOOLS) -> list[dict[str, Any]]:
    """Return tools as the field ``tools`` of a chat request has them."""
    return [
        {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters)}}
        for tool in tools
    ]


@dataclass(frozen=True)
class ToolAnswer:
    """An answer and what is in it.

    Attributes:
        format: name of its markup.
        title: its particularity.
        raw: text that the model writes.
        calls: names and arguments of the calls.
        text: text for the user; empty for none.
        thinking: reasoning that the format itself splits off.
    """

    format: str
    title: str
    raw: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    text: str = ""
    thinking: str = ""

    def __str__(self) -> str:
        """Return a test's id."""
        return f"{self.format}-{self.title}".replace(" ", "_")


PARIS = {"city": "Paris"}
OSLO = {"city": "Zürich 🏔", "days": 3}
CODE = {"path": "a/b.py", "text": 'def f():\n    return {"a": "}]"}  # \\n é\n'}
TWO = (("get_weather", PARIS), ("get_weather", OSLO))

_CODE_JSON = json.dumps(CODE, ensure_ascii=False)
_OSLO_JSON = json.dumps(OSLO, ensure_ascii=False)

ANSWERS = (
    ToolAnswer(
        "hermes",
        "one call",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        (("get_weather", PARIS),),
    ),
    ToolAnswer(
        "hermes",
        "text and two calls",
        "I look at both.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "get_weather", "arguments": {_OSLO_JSON}}}\n</tool_call>',
        TWO,
        "I look at both.",
    ),
    ToolAnswer(
        "hermes",
        "arguments first",  # Hermes 2 Pro's template
        f'<tool_call>\n{{"arguments": {_CODE_JSON}, "name": "edit_file"}}\n</tool_call>',
        (("edit_file", CODE),),
    ),
    ToolAnswer(
        "hermes",
        "a list in one tag",  # SmolLM 2
        '<tool_call>[{"name": "list_files", "arguments": {}}, '
        '{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_call>',
        (("list_files", {}), ("get_weather", PARIS)),
    ),
    ToolAnswer(
        "hermes",
        "text after the call and a brace missing",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}\n</tool_call>\nDone.',
        (("get_weather", PARIS),),
        "Done.",
    ),
    ToolAnswer(
        "qwen3_coder",
        "one call",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        (("get_weather", PARIS),),
    ),
    ToolAnswer(
        "qwen3_coder",
        "text and two calls",
        "I look at both.\n\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich 🏔\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        TWO,
        "I look at both.",
    ),
    ToolAnswer(
        "qwen3_coder",
        "code, objects and no opening tag",
        f"<function=edit_file>\n<parameter=path>\na/b.py\n</parameter>\n<parameter=text>\n{CODE['text']}\n"
        '</parameter>\n<parameter=options>\n{"mode": [1, null]}\n</parameter>\n<parameter=lines>\n[1, 2]\n'
        "</parameter>\n<parameter=is_new>\nTrue\n</parameter>\n</function>\n</tool_call>",
        (("edit_file", {**CODE, "options": {"mode": [1, None]}, "lines": [1, 2], "is_new": True}),),
    ),
    ToolAnswer(
        "qwen3_coder",
        "a tag in a string of JSON",
        '<tool_call>\n<function=edit_file>\n<parameter=options>\n{"a": "</parameter>"}\n</parameter>\n'
        '<parameter=lines>\n["broken]\n</parameter>\n</function>\n</tool_call>',
        (("edit_file", {"options": {"a": "</parameter>"}, "lines": '["broken]'}),),
    ),
    ToolAnswer(
        "qwen3_coder",
        "no parameters",
        "<tool_call>\n<function=list_files>\n</function>\n</tool_call>",
        (("list_files", {}),),
    ),
    ToolAnswer(
        "qwen3_coder",
        "values that the schema decides",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n75001\n</parameter>\n"
        "<parameter=units>\nnull\n</parameter>\n<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
        (("get_weather", {"city": "75001", "units": None, "days": "many"}),),
    ),
    ToolAnswer(
        "mistral",
        "a list",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        f'{{"name": "get_weather", "arguments": {_OSLO_JSON}, "id": "123456789"}}]',
        TWO,
    ),
    ToolAnswer(
        "mistral",
        "text and two calls with names",
        'I look at both.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
        f"[TOOL_CALLS]get_weather[ARGS]{_OSLO_JSON}",
        TWO,
        "I look at both.",
    ),
    ToolAnswer(
        "mistral",
        "a call with an id",
        f"[TOOL_CALLS]edit_file[CALL_ID]abcdefghi[ARGS]{_CODE_JSON}",
        (("edit_file", CODE),),
    ),
    ToolAnswer("mistral", "no marker of arguments", "[TOOL_CALLS]list_files{}", (("list_files", {}),)),
    ToolAnswer(
        "llama3_json",
        "one call",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        (("get_weather", PARIS),),
    ),
    ToolAnswer(
        "llama3_json",
        "two calls behind the marker",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        f'{{"name": "get_weather", "parameters": {_OSLO_JSON}}}',
        TWO,
    ),
    ToolAnswer(
        "llama3_json",
        "a type and text before",  # Llama 3.1 8B
        'I look.\n{"type": "function", "name": "list_files", "parameters": {}}',
        (("list_files", {}),),
        "I look.",
    ),
    ToolAnswer(
        "llama3_json",
        "JSON that is no call",
        '{"name": "Paris", "parameters": {"city": 1}}',
        (),
        '{"name": "Paris", "parameters": {"city": 1}}',
    ),
    ToolAnswer("pythonic", "one call", '[get_weather(city="Paris")]', (("get_weather", PARIS),)),
    ToolAnswer(
        "pythonic",
        "two calls between markers",
        "<|python_start|>[get_weather(city='Paris'), get_weather(city=\"Zürich 🏔\", days=3)]<|python_end|>",
        TWO,
    ),
    ToolAnswer(
        "pythonic",
        "code and literals of two languages",
        '[edit_file(path="a/b.py", text="def f():\\n    return {\\"a\\": \\"}]\\"}  # \\\\n é\\n", '
        'options={"a": [True, null, -1.5]}, lines=(1, 2), is_new=false), list_files()]',
        (
            ("edit_file", {**CODE, "options": {"a": [True, None, -1.5]}, "lines": [1, 2], "is_new": False}),
            ("list_files", {}),
        ),
    ),
    ToolAnswer(
        "pythonic",
        "text before and no name of the argument",
        'I look.\n[get_weather("Paris")]',
        (("get_weather", PARIS),),
        "I look.",
    ),
    ToolAnswer("pythonic", "a list that is no call", "[1] says [x(a=1)]", (), "[1] says [x(a=1)]"),
    ToolAnswer(
        "harmony",
        "thinking and a call",
        "<|channel|>analysis<|message|>The weather.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>',
        (("get_weather", PARIS),),
        thinking="The weather.",
    ),
    ToolAnswer(
        "harmony",
        "a preamble and the recipient before the channel",
        "<|channel|>commentary<|message|>I look at both.<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary json<|message|>{"city":"Paris"}<|call|><|start|>assistant'
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{_OSLO_JSON}",
        TWO,
        "I look at both.",
    ),
    ToolAnswer(
        "harmony",
        "a marker in a string",
        "<|channel|>commentary to=functions.edit_file <|constrain|>json<|message|>"
        '{"path": "<|call|>", "text": "<|start|>"}<|call|>',
        (("edit_file", {"path": "<|call|>", "text": "<|start|>"}),),
    ),
    ToolAnswer(
        "harmony",
        "a call in the channel of thinking",
        "<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant<|channel|>analysis to=functions."
        'get_weather code<|message|>{"city": "Paris"}<|call|>',
        (("get_weather", PARIS),),
        thinking="I ask.",
    ),
    ToolAnswer(
        "harmony",
        "text whose header says JSON",
        '<|channel|>final <|constrain|>json<|message|>{"city": "Paris"}',
        (),
        '{"city": "Paris"}',
    ),
    ToolAnswer(
        "harmony",
        "an answer without calls",
        "<|channel|>analysis<|message|>Easy.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello <|you|>\n",
        (),
        "Hello <|you|>\n",
        "Easy.",
    ),
)
"""Answers of every format."""


def merged(parts: Sequence[Part]) -> list[Part]:
    """Join neighbours of a kind, so that two divisions of the same answer compare equal."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, CallArguments) and isinstance(last, CallArguments) and last.call == part.call:
            joined[-1] = CallArguments(part.call, last.text + part.text)
        elif isinstance(part, Text | Thinking) and type(part) is type(last):
            joined[-1] = type(part)(last.text + part.text)
        else:
            joined.append(part)
    return joined


def calls_of(parts: Sequence[Part]) -> list[tuple[str, Any]]:
    """Return names and decoded arguments of the calls."""
    names = {part.call: part.name for part in parts if isinstance(part, CallStart)}
    texts = {part.call: part.text for part in merged(parts) if isinstance(part, CallArguments)}
    return [(name, json.loads(texts[call])) for call, name in names.items()]


def text_of(parts: Sequence[Part], kind: type[Text] | type[Thinking] = Text) -> str:
    """Return the text, or the thinking, of an answer."""
    return "".join(part.text for part in parts if isinstance(part, kind))
