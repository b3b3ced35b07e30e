"""Reader of a call written in Python, ``f(a=1, b=[True, "x"])``: literals only, nothing is evaluated.

JSON's ``true``, ``false`` and ``null`` are read as well, since models mix the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from wisp_runtime.server.answers.tools.scanners.json_value import as_unicode

MAX_DEPTH = 64
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')"""
    r"""|(?P<number>[-+]?(?:\d[\d_]*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?)(?![\w.])"""
    r"""|(?P<name>[A-Za-z_]\w*+)|(?P<mark>[][(){},:=]))""",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_NAMES = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


class PythonCall:
    """Parser of the text between the parentheses of a call.

    Args:
        text: arguments, without the parentheses.
        parameters: names of the parameters, to which arguments without a name belong in this order.
    """

    def __init__(self, text: str, parameters: Sequence[str] = ()) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._parameters = parameters

    def arguments(self) -> dict[str, Any]:
        """Return arguments by name.

        Raises:
            ValueError: the text is no list of literal arguments.
        """
        arguments: dict[str, Any] = {}
        while self._peek() != ("end", ""):
            if self._peek()[0] == "name" and self._peek(1) == ("mark", "="):
                name = self._next()[1]
                self._next()
            elif len(arguments) < len(self._parameters):
                name = self._parameters[len(arguments)]
            else:
                raise ValueError("an argument without a name")
            arguments[name] = self._value(0)
            if self._peek() != ("end", ""):
                self._expect(",")
        return arguments

    def _value(self, depth: int) -> Any:
        kind, text = self._next()
        if kind == "string":
            return self._strings(text)
        if kind == "number":
            return _number(text)
        if kind == "name" and text in _NAMES:
            return _NAMES[text]
        if text in ("[", "(") and depth < MAX_DEPTH:
            return self._items("]" if text == "[" else ")", depth)
        if text == "{" and depth < MAX_DEPTH:
            return self._members(depth)
        raise ValueError(f"{text!r} is no literal")

    def _strings(self, text: str) -> str:
        """Return a string, and those that follow it without a comma."""
        parts = [_unescaped(text[1:-1])]
        while self._peek()[0] == "string":
            parts.append(_unescaped(self._next()[1][1:-1]))
        return "".join(parts)

    def _items(self, closer: str, depth: int) -> list[Any]:
        items = []
        while self._peek()[1] != closer:
            items.append(self._value(depth + 1))
            if self._peek()[1] != closer:
                self._expect(",")
        self._next()
        return items

    def _members(self, depth: int) -> dict[str, Any]:
        members = {}
        while self._peek()[1] != "}":
            key = self._value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("a key that is no text")
            self._expect(":")
            members[key] = self._value(depth + 1)
            if self._peek()[1] != "}":
                self._expect(",")
        self._next()
        return members

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, mark: str) -> None:
        if self._next() != ("mark", mark):
            raise ValueError(f"{mark!r} is missing")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise ValueError(f"no literal at character {at}")
        tokens.append((found.lastgroup, found.group(found.lastgroup)))
        at = found.end()
    return tokens


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return number


def _unescaped(text: str) -> str:
    return as_unicode(_ESCAPE.sub(_unescape, text)) if "\\" in text else text


def _unescape(escape: re.Match[str]) -> str:
    code = escape.group(1)
    if len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    if code in _ESCAPES:
        return _ESCAPES[code]
    return code if code in "\\'\"" else "\\" + code
