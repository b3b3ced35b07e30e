"""Incremental scanner of one JSON value in an answer that is still being written.

Lenient on purpose: it finds where a value ends (strings, escapes and brackets count), and does not check the
rest, so that arguments can be handed on as they come. Raw control characters in strings, which models write
and JSON forbids, are escaped.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_BETWEEN_STRINGS = re.compile(r'[^"{}\[\]]+')
_SCALAR = re.compile(r"[-+.\w]+", re.ASCII)
_MAX_SCALAR_CHARS = 512
_ESCAPES = {"\n": "n", "\r": "r", "\t": "t"}

Kind = Literal["object", "array", "string", "scalar"]
_KINDS: dict[str, Kind] = {"{": "object", "[": "array", '"': "string"}


class JsonValue:
    """Scanner of one value, which begins with the first character that is pushed.

    Attributes:
        kind: kind of the value, known from its first character.
        is_done: whether the value is complete.
        is_failed: whether the text is no JSON value.
    """

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self.is_done = self.is_failed = False
        self._chunks: list[str] = []
        self._depth = self._scalar_chars = 0
        self._is_in_string = self._is_escaped = False

    def push(self, text: str, at: int) -> int:
        """Scan ``text`` from ``at``; return the position behind what belongs to the value."""
        if self.kind is None and at < len(text):
            self.kind = _KINDS.get(text[at], "scalar")
        while at < len(text) and not (self.is_done or self.is_failed):
            if self._is_in_string:
                at = self._scan_string(text, at)
            elif self.kind == "scalar":
                at = self._scan_scalar(text, at)
            else:
                at = self._scan_structure(text, at)
        return at

    @property
    def is_in_string(self) -> bool:
        """Whether what follows is in a string."""
        return self._is_in_string

    def take(self) -> str:
        """Return the text scanned since the last call."""
        taken = "".join(self._chunks)
        self._chunks.clear()
        return taken

    def _scan_string(self, text: str, at: int) -> int:
        char = text[at]
        if self._is_escaped:
            self._is_escaped = False
            self._chunks.append(_escape_letter(char) if char < " " else char)
            return at + 1
        if run := _IN_STRING.match(text, at):
            self._chunks.append(run.group())
            return run.end()
        self._chunks.append("\\" + _escape_letter(char) if char < " " else char)
        self._is_escaped = char == "\\"
        if char == '"':
            self._is_in_string = False
            self.is_done = self._depth == 0
        return at + 1

    def _scan_structure(self, text: str, at: int) -> int:
        if run := _BETWEEN_STRINGS.match(text, at):
            self._chunks.append(run.group())
            return run.end()
        char = text[at]
        self._chunks.append(char)
        if char == '"':
            self._is_in_string = True
        else:
            self._depth += 1 if char in "{[" else -1
            self.is_done = self._depth == 0
        return at + 1

    def _scan_scalar(self, text: str, at: int) -> int:
        run = _SCALAR.match(text, at)
        if run is None:
            self.is_done, self.is_failed = self._scalar_chars > 0, self._scalar_chars == 0
            return at
        self._chunks.append(run.group())
        self._scalar_chars += len(run.group())
        self.is_failed = self._scalar_chars > _MAX_SCALAR_CHARS
        return run.end()


def _escape_letter(control: str) -> str:
    return _ESCAPES.get(control) or f"u{ord(control):04x}"


def decoded(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or one that Python does not hold (deep nesting, endless numbers).
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def as_unicode(text: str) -> str:
    """Return ``text`` with surrogate pairs joined, and U+FFFD for each that is alone: neither is UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
