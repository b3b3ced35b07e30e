"""Mistral's markup: ``[TOOL_CALLS][{"name": …, "arguments": {…}}]``, or newer ``[TOOL_CALLS]name[ARGS]{…}``.

Between name and arguments of the newer form there may be ``[CALL_ID]`` and an id, which is dropped: ids of
calls are the server's. Some tokenizers leave ``[ARGS]`` out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wisp_runtime.server.answers.parts import MAX_NAME_CHARS, CallArguments, CallStart, Part
from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.grammars.call_objects import call_object
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, either, quoted, repeated
from wisp_runtime.server.answers.tools.grammars.schemas import arguments_schema
from wisp_runtime.server.answers.tools.scanners.json_calls import JsonCallsParser
from wisp_runtime.server.answers.tools.scanners.json_value import JsonValue
from wisp_runtime.server.answers.tools.scanners.markup_parser import SPACE

OPENER, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_HEAD = re.compile(r"\s*([\w.:/-]+)\s*(?:\[CALL_ID\][\w-]*)?\s*(?:\[ARGS\])?\s*")
_HEAD_CHARS = re.compile(r"[\w.:/\[\] \t\r\n-]*")
_MAX_HEAD_CHARS = 512


class Mistral:
    """Format ``mistral``."""

    name = "mistral"
    markers: tuple[str, ...] = (OPENER, CALL_ID, ARGUMENTS)
    splits_thinking = False
    ends: tuple[str, ...] = ()

    def parser(self, _tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return MistralParser()

    def calls(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of calls alone."""
        if not rules.is_special(ARGUMENTS):
            return f"{rules.literal(OPENER)} {self._list(rules, tools, is_parallel=is_parallel)}"
        call = f"{rules.literal(OPENER)} {self._named(rules, tools)}"
        return repeated(call, call, is_parallel=is_parallel)

    def answer(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of an answer that may have calls."""
        before = rules.text_until(OPENER)
        if not rules.is_special(ARGUMENTS):
            return f"{before} {self._list(rules, tools, is_parallel=is_parallel)} | {rules.text(OPENER)}"
        named = self._named(rules, tools)
        calls = repeated(f"{before} {named}", f"{rules.literal(OPENER)} {named}", is_parallel=is_parallel)
        return f"{calls} | {rules.text(OPENER)}"

    def _list(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of the first form behind its marker."""
        call = call_object(rules, tools, "arguments")
        return f"""  "[" {repeated(call, f'", " {call}', is_parallel=is_parallel)} "]"  """.strip()

    def _named(self, rules: LarkRules, tools: Sequence[Tool]) -> str:
        """Return the symbol of a call of the newer form behind its marker."""
        call_id = f"({rules.literal(CALL_ID)} /[a-zA-Z0-9]{{9}}/)? " if rules.is_special(CALL_ID) else ""
        calls = (
            f"{quoted(tool.name)} {call_id}{rules.literal(ARGUMENTS)} {rules.json(arguments_schema(tool))}"
            for tool in tools
        )
        return rules.rule(either(calls))


class MistralParser(JsonCallsParser):
    """Parser of both forms; the character behind the marker says which it is."""

    def __init__(self) -> None:
        super().__init__((OPENER,))
        self._head: list[str] = []
        self._head_chars = 0
        self._value = JsonValue()

    @property
    def is_in_call(self) -> bool:
        return super().is_in_call or self._state == self._in_arguments

    def _before_call(self) -> bool:
        if space := SPACE.match(self._held, self._at):
            return self._skip(space.end())
        if self._is_list or self._held[self._at] in "[{":
            return super()._before_call()
        self._head, self._head_chars, self._state = [], 0, self._in_head
        return True

    def _in_head(self) -> bool:
        """Read the name and what follows it, up to the brace of the arguments."""
        last = self._at + _MAX_HEAD_CHARS - self._head_chars + 1
        run = _HEAD_CHARS.match(self._held, self._at, last)
        assert run is not None
        self._head.append(run.group())
        self._head_chars += len(run.group())
        self._skip(run.end())
        if self._head_chars > _MAX_HEAD_CHARS:
            return self._to_text()
        if self._at == len(self._held):
            return False
        head = _HEAD.fullmatch("".join(self._head))
        if head is None or len(head.group(1)) > MAX_NAME_CHARS or self._held[self._at] != "{":
            return self._to_text()
        self._emit([CallStart(self._calls, head.group(1))])
        self._value, self._state = JsonValue(), self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        self._at = self._value.push(self._held, self._at)
        arguments: list[Part] = []
        if text := self._value.take():
            arguments.append(CallArguments(self._calls - 1, text))
        self._emit(arguments)
        self._state = self._to_text if self._value.is_done else self._in_arguments
        return self._value.is_done
