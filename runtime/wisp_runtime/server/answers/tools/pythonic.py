"""Python's markup: ``[f(a=1), g(b="x")]``, of Llama 4 and Llama 3.2.

Nothing marks it as a call but its form, so the list must begin a line and its first function must be a tool.
A call is handed on once it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from wisp_runtime.server.answers.parts import MAX_NAME_CHARS, CallArguments, CallStart
from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.grammars.lark import (
    LarkRules,
    either,
    expression,
    quoted,
    repeated,
)
from wisp_runtime.server.answers.tools.grammars.schemas import properties, property_schema, required
from wisp_runtime.server.answers.tools.scanners.markup_parser import MarkupParser
from wisp_runtime.server.answers.tools.scanners.python_call import ARGUMENT_NAME, PythonCall

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[\w.:/-]+", re.ASCII)
_PLAIN = re.compile(r"[^\"'()\[\]{}]+")
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]+") for quote in "\"'"}


class Pythonic:
    """Format ``pythonic``."""

    name = "pythonic"
    markers: tuple[str, ...] = (START, END)
    splits_thinking = False
    ends: tuple[str, ...] = ()

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return PythonicParser(tools)

    def calls(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of calls alone."""
        first, following = (
            rules.rule(either(_call(rules, tool, begin) for tool in tools)) for begin in ("[", ", ")
        )
        return f'{repeated(first, following, is_parallel=is_parallel)} "]"'

    def answer(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:
        """Return the symbols of an answer that may have calls."""
        names = "|".join(expression(tool.name) for tool in tools)
        text = rules.text_without(rf"\[[ \t\r\n]*(?:{names})\(", START)
        return f"{self.calls(rules, tools, is_parallel=is_parallel)} | {text}"


class PythonicParser(MarkupParser):
    """Parser: a list of names and parentheses, and in these a text whose brackets show its end."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__((START,), "[")
        self._tools = {tool.name: _parameter_names(tool) for tool in tools}
        self._name, self._quote, self._depth, self._is_escaped = "", "", 0, False

    @property
    def is_in_call(self) -> bool:
        return self._state == self._in_arguments

    def _opened(self, _opener: str) -> None:
        self._state = self._before_list

    def _end(self) -> None:
        if self._state in (self._after_call, self._after_list):
            self._drop(len(self._held))

    def _before_list(self) -> bool:
        if self._skips_space():
            return True
        if self._held[self._at] != "[":
            return self._to_text()
        self._state = self._before_name
        return self._skip(self._at + 1)

    def _before_name(self) -> bool:
        if self._skips_space():
            return True
        self._name, self._state = "", self._in_name
        return True

    def _in_name(self) -> bool:
        if name := _NAME.match(self._held, self._at):
            self._name += name.group()
            self._skip(name.end())
            return len(self._name) <= MAX_NAME_CHARS or self._to_text()
        if self._held[self._at] != "(" or self._name not in self._tools:
            return self._to_text()
        self._skip(self._at + 1)
        self._depth, self._state = 1, self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        """Read on to the closing parenthesis: a run of plain characters, or one that counts."""
        plain = _IN_STRING[self._quote] if self._quote else _PLAIN
        if self._is_escaped or (run := plain.match(self._held, self._at)) is None:
            self._count(self._held[self._at])
            end = self._at + 1
        else:
            end = run.end()
        if self._depth:
            self._collected.append(self._held[self._at : end])
            return self._skip(end)
        self._skip(end)
        return self._close_call()

    def _count(self, char: str) -> None:
        if self._quote:
            is_closing = char == self._quote and not self._is_escaped
            self._is_escaped = char == "\\" and not self._is_escaped
            self._quote = "" if is_closing else self._quote
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1

    def _close_call(self) -> bool:
        try:
            text = PythonCall(self._collected_text(), self._tools[self._name]).arguments()
        except ValueError:
            return self._to_text()
        self._emit([CallStart(self._calls, self._name), CallArguments(self._calls, text)])
        self._state = self._after_call
        return True

    def _after_call(self) -> bool:
        if self._skips_space():
            return True
        char = self._held[self._at]
        if char == ",":
            self._state = self._before_name
            return self._skip(self._at + 1)
        if char != "]":
            return self._to_text()
        self._state = self._after_list
        return self._drop(self._at + 1)

    def _after_list(self) -> bool:
        if self._skips_space():
            return True
        if self._held.startswith(END, self._at):
            self._drop(self._at + len(END))
        elif self._is_partial((END,)):
            return False
        return self._to_text()


def _parameter_names(tool: Tool) -> list[str]:
    properties = tool.parameters.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []


def _call(rules: LarkRules, tool: Tool, begin: str) -> str:
    """Return the symbols of a call with named arguments, in the order of its schema; values are JSON.

    It begins with one lexeme, up to where text cannot go on: a lexer that has begun a text does not go back.
    """
    arguments = [(f"{name}=", name) for name in properties(tool) if ARGUMENT_NAME.fullmatch(name)]
    return f'{quoted(f"{begin}{tool.name}(")} {_arguments(rules, tool, arguments)} ")"'


def _arguments(rules: LarkRules, tool: Tool, arguments: Sequence[tuple[str, str]]) -> str:
    """Return the symbol of the arguments that follow: with those before it, an argument needs a comma."""
    first, rest, names = "", "", required(tool)
    for written, name in reversed(arguments):
        value = rules.json(property_schema(tool, name))
        after = f"{quoted(', ' + written)} {value} {rest}"
        begin = f"{quoted(written)} {value} {rest}"
        if name in names:
            first, rest = rules.rule(begin), rules.rule(after)
        else:
            first = rules.rule(f"{begin} | {first}" if first else f"({begin})?")
            rest = rules.rule(f"{after} | {rest}" if rest else f"({after})?")
    return first
