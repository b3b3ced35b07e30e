"""Translate a call written in Python, ``f(a=1, b=[True, "x"])``, to JSON; nothing is evaluated.

JSON's ``true``, ``false`` and ``null`` are read as well, since models mix the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from wisp_runtime.server.answers.tools.scanners.json_value import as_unicode

MAX_DEPTH = 64
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')"""
    r"""|(?P<number>[-+]?(?:\d[\d_]*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?)(?![\w.])"""
    r"""|(?P<name>[A-Za-z_][\w.-]*+)|(?P<mark>[][(){},:=]))""",
    re.DOTALL | re.ASCII,
)
ARGUMENT_NAME = re.compile(r"[A-Za-z_][\w.-]*+", re.ASCII)
"""Name that an argument can have here; wider than Python's."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"/": "/", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_NAMES = {name: name.lower() for name in ("True", "False", "true", "false", "null")} | {"None": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][-+]?\d++)?", re.ASCII)


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

    def arguments(self) -> str:
        """Return the arguments as the text of a JSON object.

        Raises:
            ValueError: the text is no list of literal arguments.
        """
        arguments = dict[str, str]()
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
        return _object(arguments)

    def _value(self, depth: int) -> str:
        """Return the JSON text of the next value."""
        kind, text = self._next()
        if kind == "string":
            return json.dumps(self._strings(text), ensure_ascii=False)
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

    def _items(self, closer: str, depth: int) -> str:
        items = list[str]()
        while self._peek()[1] != closer:
            items.append(self._value(depth + 1))
            if self._peek()[1] != closer:
                self._expect(",")
        self._next()
        return f"[{', '.join(items)}]"

    def _members(self, depth: int) -> str:
        members = dict[str, str]()
        while self._peek()[1] != "}":
            kind, text = self._next()
            if kind != "string":
                raise ValueError("a key that is no text")
            key = self._strings(text)
            self._expect(":")
            members[key] = self._value(depth + 1)
            if self._peek()[1] != "}":
                self._expect(",")
        self._next()
        return _object(members)

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


def _object(members: Mapping[str, str]) -> str:
    written = (f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in members.items())
    return f"{{{', '.join(written)}}}"


def _number(text: str) -> str:
    """Return a number as JSON has it; one that is JSON already stays as it is, however large."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return str(int(number)) if number.is_integer() and "." not in text else str(number)


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
