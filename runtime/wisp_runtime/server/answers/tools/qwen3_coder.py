"""Qwen3-Coder's markup: XML with a parameter a line, also of Qwen 3.5 and Nemotron 3.

``<tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>``, with a newline around
each value that does not belong to it. Values have no types; the tool's schema gives them: strings are handed
on as they come, other values once they are complete. A text ends at ``</parameter>`` and nowhere else, since
cutting it short is worse than a call that fails; JSON also does not end within its strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wisp_runtime.server.answers.parts import MAX_NAME_CHARS, CallArguments, CallStart
from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, either, quoted, repeated
from wisp_runtime.server.answers.tools.grammars.schemas import properties, property_schema, required
from wisp_runtime.server.answers.tools.grammars.text_values import TextValues
from wisp_runtime.server.answers.tools.scanners.json_value import JsonValue
from wisp_runtime.server.answers.tools.scanners.markup_parser import MarkupParser
from wisp_runtime.server.answers.tools.scanners.schema_types import ALL_TYPES, SchemaTypes, json_text

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_NO_SCHEMA: tuple[Mapping[str, Any], SchemaTypes] = {}, SchemaTypes({})
_NAME_END = ">\n"
_NAME = re.compile(r"\s*[\w.:/-]+\s*")


class Qwen3Coder:
    """Format ``qwen3_coder``."""

    name = "qwen3_coder"
    markers: tuple[str, ...] = (CALL, CALL_END)
    splits_thinking = False
    ends: tuple[str, ...] = ()

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return Qwen3CoderParser(tools)

    def calls(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of calls alone."""
        call = f"{rules.literal(CALL)} {self._rest(rules, tools)}"
        return repeated(call, f'"\\n" {call}', is_parallel=is_parallel)

    def answer(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of an answer that may have calls."""
        call = rules.rule(
            f"{rules.text_until(CALL)} {self._rest(rules, tools)} "
            f"| {rules.text_until(FUNCTION)} {self._functions(rules, tools)} {rules.literal(CALL_END)}"
        )
        return f"{call}* {rules.text(CALL)}" if is_parallel else f"{call} | {rules.text(CALL)}"

    def _rest(self, rules: LarkRules, tools: Sequence[Tool]) -> str:
        """Return the symbols of a call behind its first tag."""
        begin, end = quoted("\n" + FUNCTION), rules.literal(CALL_END)
        return f"{begin} {self._functions(rules, tools)} {end}"

    def _functions(self, rules: LarkRules, tools: Sequence[Tool]) -> str:
        """Return the symbol of a function's name and parameters, in the order of its schema, and its end."""
        end = quoted(FUNCTION_END + "\n")
        return rules.rule(
            either(f"{quoted(tool.name + _NAME_END)} {self._parameters(rules, tool)} {end}" for tool in tools)
        )

    def _parameters(self, rules: LarkRules, tool: Tool) -> str:
        values = TextValues(rules, "\n" + PARAMETER_END, tool.parameters, is_strict=tool.is_strict)
        symbols, names = list[str](), required(tool)
        for name in properties(tool):
            begin = quoted(f"{PARAMETER}{name}>\n")
            parameter = f'{begin} {values.value(property_schema(tool, name))} "\\n"'
            symbols.append(parameter if name in names else f"({parameter})?")
        return " ".join(symbols)


class Qwen3CoderParser(MarkupParser):
    """Parser; ``<tool_call>`` may be missing, as these models leave it out at times."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__((CALL, FUNCTION))
        self._schemas = {tool.name: (tool.parameters, SchemaTypes(tool.parameters)) for tool in tools}
        self._schema, self._schema_types = _NO_SCHEMA
        self._types = ALL_TYPES
        self._has_parameters = self._is_value_begun = False
        self._value, self._last_char = JsonValue(), ""

    @property
    def is_in_call(self) -> bool:
        return self._state in (self._between_parameters, self._in_key, self._in_value)

    def _opened(self, opener: str) -> None:
        self._state = self._before_function if opener == CALL else self._in_name

    def _end(self) -> None:
        if self._state in (self._between_parameters, self._after_function, self._in_key, self._in_value):
            self._drop(len(self._held))

    def _before_function(self) -> bool:
        if self._skips_space():
            return True
        if self._held.startswith(FUNCTION, self._at):
            self._state = self._in_name
            return self._skip(self._at + len(FUNCTION))
        return False if self._is_partial((FUNCTION,)) else self._to_text()

    def _in_name(self) -> bool:
        end = self._collect((">", "\n"))
        if end is None and sum(map(len, self._collected)) <= MAX_NAME_CHARS:
            return False
        name = self._collected_text()
        if end != ">" or len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            return self._to_text()
        self._schema, self._schema_types = self._schemas.get(name.strip(), _NO_SCHEMA)
        self._has_parameters = False
        self._emit([CallStart(self._calls, name.strip())])
        self._state = self._between_parameters
        return True

    def _between_parameters(self) -> bool:
        """Expect a parameter or the end of the call; other text is dropped."""
        marker = self._collect((PARAMETER, FUNCTION_END, CALL_END))
        self._collected_text()
        self._pending.clear()
        if marker is None:
            return False
        if marker == PARAMETER:
            self._state = self._in_key
            return True
        self._emit_arguments("}" if self._has_parameters else "{}")
        self._state = self._after_function if marker == FUNCTION_END else self._to_text
        return True

    def _in_key(self) -> bool:
        if self._collect((">",)) is None:
            return False
        key = self._collected_text().strip()
        properties = self._schema.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        self._types = self._schema_types.of(schema)
        opening = ", " if self._has_parameters else "{"
        self._emit_arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        self._has_parameters, self._is_value_begun = True, False
        self._value, self._last_char = JsonValue(), ""
        self._state = self._in_value
        return True

    def _in_value(self) -> bool:
        if self._types == {"string"}:
            return self._in_string()
        end = self._collect((PARAMETER_END,))
        self._scan(self._collected[-1])
        if end is None:
            return False
        if self._value.is_in_string and self._last_char != "\n":
            self._collected.append(end)
            self._scan(end)
            return True
        value = self._collected_text().removeprefix("\n").removesuffix("\n")
        self._emit_arguments(json_text(value, self._types))
        self._state = self._between_parameters
        return True

    def _scan(self, text: str) -> None:
        """Keep track of whether a value that may be JSON is in a string: there, a tag is no tag.

        JSON strings hold no line breaks, so that a tag at the start of a line ends also a broken value.
        """
        self._last_char = text[-1:] or self._last_char
        text = text if self._value.kind else text.lstrip()
        self._value.push(text, 0)
        self._value.take()

    def _in_string(self) -> bool:
        if not self._is_value_begun:
            self._is_value_begun = True
            self._emit_arguments('"')
            if self._held[self._at] == "\n":
                return self._drop(self._at + 1)
        end = self._collect(("\n" + PARAMETER_END, PARAMETER_END))
        if text := self._collected_text():
            self._emit_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        self._pending.clear()
        if end is None:
            return False
        self._emit_arguments('"')
        self._state = self._between_parameters
        return True

    def _after_function(self) -> bool:
        if self._skips_space():
            return True
        if self._held.startswith(CALL_END, self._at):
            self._drop(self._at + len(CALL_END))
        elif self._is_partial((CALL_END,)):
            return False
        return self._to_text()

    def _emit_arguments(self, text: str) -> None:
        self._emit([CallArguments(self._calls - 1, text)])
