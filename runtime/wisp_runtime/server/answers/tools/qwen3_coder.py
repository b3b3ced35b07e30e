"""Qwen3-Coder's markup: XML with a parameter a line, also of Qwen 3.5 and Nemotron 3.

``<tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>``, with a newline around
each value that does not belong to it. Values have no types; the tool's schema gives them: strings are handed
on as they come, other values once they are complete. A value ends at ``</parameter>`` and nowhere else, since
cutting a string short is worse than a call that fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wisp_runtime.server.answers.parts import CallArguments, CallStart
from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.scanners.markup_parser import MarkupParser
from wisp_runtime.server.answers.tools.scanners.schema_types import ALL_TYPES, json_text, types_of

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"\s*[\w.:/-]{1,256}\s*")


class Qwen3Coder:
    """Format ``qwen3_coder``."""

    name = "qwen3_coder"
    markers: tuple[str, ...] = (CALL, CALL_END)
    splits_thinking = False

    def is_used_by(self, template: str) -> bool:
        """Return whether a template shows functions and parameters as XML."""
        return FUNCTION in template and PARAMETER in template

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return Qwen3CoderParser(tools)


class Qwen3CoderParser(MarkupParser):
    """Parser; ``<tool_call>`` may be missing, as these models leave it out at times."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__((CALL, FUNCTION))
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._schema: Mapping[str, Any] = {}
        self._types = ALL_TYPES
        self._has_parameters = self._is_value_begun = False

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
        if end is None and sum(map(len, self._collected)) <= 256:
            return False
        name = self._collected_text()
        if end != ">" or not _NAME.fullmatch(name):
            return self._to_text()
        self._schema, self._has_parameters = self._schemas.get(name.strip(), {}), False
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
        self._types = types_of(schema, self._schema)
        opening = ", " if self._has_parameters else "{"
        self._emit_arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        self._has_parameters, self._is_value_begun = True, False
        self._state = self._in_value
        return True

    def _in_value(self) -> bool:
        if self._types == {"string"}:
            return self._in_string()
        if self._collect((PARAMETER_END,)) is None:
            return False
        value = self._collected_text().removeprefix("\n").removesuffix("\n")
        self._emit_arguments(json_text(value, self._types))
        self._state = self._between_parameters
        return True

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
