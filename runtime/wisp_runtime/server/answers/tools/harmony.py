"""Harmony, the markup of gpt-oss: messages in channels, each with a header and a body.

``<|channel|>analysis<|message|>…<|end|>`` is thinking, ``final`` is text, and a message to ``functions.NAME``
is a call with JSON in its body, whose strings may hold markers. ``commentary`` to nobody is text that
introduces calls. So this parser splits thinking too: it reads every answer of such a model, and no reasoning
parser runs before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from wisp_runtime.server.answers.parts import MAX_NAME_CHARS, CallArguments, CallStart, Text, Thinking
from wisp_runtime.server.answers.tools.format import Tool, ToolParser
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, either, quoted
from wisp_runtime.server.answers.tools.grammars.schemas import arguments_schema
from wisp_runtime.server.answers.tools.scanners.json_value import JsonValue
from wisp_runtime.server.answers.tools.scanners.markup_parser import MarkupParser

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
FUNCTIONS = "functions."
_HEADERS, _ENDS = (START, CHANNEL), (END, RETURN, CALL)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MAX_HEADER_CHARS = 1024


class Harmony:
    """Format ``harmony``."""

    name = "harmony"
    markers: tuple[str, ...] = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)
    splits_thinking = True
    ends: tuple[str, ...] = (RETURN, CALL)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one answer."""
        return HarmonyParser(tools)

    def calls(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:  # noqa: ARG002
        """Return the symbols of one call: it ends the message."""
        return f"{self._messages(rules, 'analysis')} {self._call(rules, tools)}"

    def answer(self, rules: LarkRules, tools: Sequence[Tool], *, is_parallel: bool) -> str:  # noqa: ARG002
        """Return the symbols of an answer that may have calls."""
        final = f"{self._final(rules)} {rules.text(*self.markers)}"
        messages = self._messages(rules, "analysis", "commentary")
        return f"{messages} ({self._call(rules, tools)} | {final})"

    def before_text(self, rules: LarkRules) -> str:
        """Return the symbols of all that comes before an answer's text, if it has no calls."""
        return f"{self._messages(rules, 'analysis', 'commentary')} {self._final(rules)}"

    def _final(self, rules: LarkRules) -> str:
        """Return the symbols of the last message's header, which may say that its body is JSON."""
        constrained = rules.literal(f" {CONSTRAIN}json")
        return f"{rules.literal(CHANNEL + 'final')} ({constrained})? {rules.literal(MESSAGE)}"

    def _messages(self, rules: LarkRules, *channels: str) -> str:
        """Return the symbols of any number of messages in these channels, before the last message."""
        names = either(map(quoted, channels))
        begin, body = (
            rules.literal(CHANNEL),
            f"{rules.literal(MESSAGE)} {rules.text(*self.markers)} {rules.literal(END)}",
        )
        return f"({begin} {names} {body} {rules.literal(START)} {quoted('assistant')})*"

    def _call(self, rules: LarkRules, tools: Sequence[Tool]) -> str:
        """Return the symbol of a message to a function; the token that ends it is the answer's last."""
        body = rules.literal(f" {CONSTRAIN}json{MESSAGE}")
        calls = (f"{quoted(tool.name)} {body} {rules.json(arguments_schema(tool))}" for tool in tools)
        head = rules.literal(f"{CHANNEL}commentary to={FUNCTIONS}")
        return f"{head} {rules.rule(either(calls))}"


class HarmonyParser(MarkupParser):
    """Parser; without tools, a call's body is text."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__((*_HEADERS, *_ENDS))
        self._names = frozenset(tool.name for tool in tools)
        self._header_chars = 0
        self._value = JsonValue()
        self._add: Callable[[str], None] = self._add_text
        self._state = self._at_start

    @property
    def is_in_call(self) -> bool:
        return self._state == self._in_body and self._add == self._add_arguments

    def _at_start(self) -> bool:
        """The prompt may end in a header, which the answer goes on with: `` to=functions.f<|channel|>…``."""
        if self._skips_space():
            return True
        if self._held.startswith("to=", self._at):
            self._opened(START)
            return True
        return False if self._is_partial(("to=",)) else self._to_text()

    def _opened(self, opener: str) -> None:
        if opener in _HEADERS:
            self._header_chars, self._state = 0, self._in_header
        else:
            self._drop(self._at)

    def _end(self) -> None:
        if self._state == self._in_body:
            self._close_body()

    def _in_header(self) -> bool:
        before, last = self._at, self._at + _MAX_HEADER_CHARS - self._header_chars + 1
        end = self._collect((MESSAGE,))
        self._header_chars += len(self._collected[-1])
        if self._header_chars > _MAX_HEADER_CHARS:
            self._pending[-1], self._at = self._held[before:last], last
            return self._to_text()
        if end is None:
            return False
        self._collected_text()
        self._begin_body("".join(self._pending))
        self._pending.clear()
        self._state = self._in_body
        return True

    def _begin_body(self, header: str) -> None:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        recipient_name = recipient.group(1) if recipient else ""
        name = recipient_name.removeprefix(FUNCTIONS)
        is_call = recipient_name.startswith(FUNCTIONS) or name in self._names
        if is_call and self._names and 0 < len(name) <= MAX_NAME_CHARS:
            self._emit([CallStart(self._calls, name)])
            self._value, self._add = JsonValue(), self._add_arguments
        elif channel and channel.group(1) == "analysis":
            self._add = self._add_thinking
        else:
            self._add = self._add_text

    def _in_body(self) -> bool:
        end = self._collect((*_HEADERS, *_ENDS))
        if text := self._collected_text():
            self._add(text)
        self._pending.clear()
        if end is None:
            return False
        if self._add == self._add_arguments and self._value.is_in_string:
            self._add(end)
            return True
        self._close_body()
        self._pending = [end] if end in _HEADERS else []
        self._state = self._in_text
        if end in _HEADERS:
            self._opened(end)
        return True

    def _close_body(self) -> None:
        self._pending.clear()
        if self._add == self._add_arguments and self._value.kind is None:
            self._add("{}")

    def _add_text(self, text: str) -> None:
        self._parts.append(Text(text))

    def _add_thinking(self, text: str) -> None:
        self._parts.append(Thinking(text))

    def _add_arguments(self, text: str) -> None:
        text = text if self._value.kind else text.lstrip()
        self._value.push(text, 0)
        if arguments := self._value.take():
            self._emit([CallArguments(self._calls - 1, arguments)])
