"""Bounds on a JSON text before it is parsed, and the positions of its top-level fields.

A scan looks at brackets, quotes and commas alone, in slices of 8 KiB by C-speed operations on bytes, so that
a caller on an event loop may feed a body as it arrives. It accepts every JSON object within its limits and
many texts that are not JSON: a parser behind it decides. Standard library only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum

SLICE_BYTES = 8 * 1024
MAX_NAME_BYTES = 256
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[{}\[\],:]|[^\s"{}\[\],:]++', re.DOTALL)
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OPENING, _CLOSING = b"{[", b"}]"
_QUOTE, _COLON, _COMMA, _BRACE = b'":,{'


class JsonRefused(ValueError):
    """The text is not JSON, or over a limit; the message is half a sentence for the sender."""


class JsonTooComplex(JsonRefused):
    """The text is over one of the limits of its scan."""


@dataclass(frozen=True)
class JsonLimits:
    """Limits of one text.

    Args:
        max_depth: deepest nesting; 1 is an object without containers in it.
        max_containers: objects and lists; a parser takes some 100 bytes and 0.3 µs for each.
        max_values: values of all kinds, containers included.
        max_fractions: numbers with a fraction or an exponent (and ``true``, ``false``), up to 3 µs each.
        max_fields: names of the top-level object.
    """

    max_depth: int = 64
    max_containers: int = 16_384
    max_values: int = 262_144
    max_fractions: int = 16_384
    max_fields: int = 128


@dataclass(frozen=True)
class Field:
    """A top-level field: position of its value in the text, and counts of what the value holds.

    Attributes:
        start, end: offsets of the value's first byte and of the byte behind its last.
        strings, containers: strings (names included) and containers in the value, itself included.
    """

    start: int
    end: int
    strings: int
    containers: int


# Token that may come next at the top level. SCALAR: also the rest of one that the end of a slice divides.
_Expects = Enum("_Expects", "DOCUMENT FIRST_NAME NAME COLON VALUE SCALAR COMMA END")


class JsonScan:
    """Scan of one JSON object, fed as its bytes arrive.

    Attributes:
        fields: top-level fields read so far, by name.
        object_start: offset of the object's opening brace.
    """

    def __init__(self, limits: JsonLimits | None = None) -> None:
        self.fields: dict[str, Field] = {}
        self.object_start = 0
        self._limits = limits or JsonLimits()
        self._held = b""  # a backslash whose escape is in the next bytes
        self._offset = 0
        self._depth = 0
        self._in_string = False
        self._expects = _Expects.DOCUMENT
        self._values = 1
        self._containers = self._strings = self._fractions = 0
        self._name = b""
        self._scalar_end = 0
        self._value: tuple[int, int, int] | None = None  # start; strings and containers before it

    def feed(self, data: bytes) -> None:
        """Scan the next bytes.

        Raises:
            JsonTooComplex: the text is over a limit.
            JsonRefused: it cannot be a JSON object.
        """
        start = 0
        while start < len(data):
            part = self._held + data[start : start + SLICE_BYTES]
            start += SLICE_BYTES
            is_split = (len(part) - len(part.rstrip(b"\\"))) % 2
            self._held = b"\\" if is_split else b""
            self._scan(part[:-1] if is_split else part)

    def finish(self) -> dict[str, Field]:
        """Return the fields of the complete text.

        Raises:
            JsonRefused: the text ends before the object does.
        """
        if self._expects is not _Expects.END or self._held:
            raise JsonRefused("it ends too early")
        return self.fields

    def _scan(self, part: bytes) -> None:
        """Count a slice, and look for fields if it touches the top level."""
        plain = part.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in part else part
        between = plain.split(b'"')
        quotes = len(between) - 1
        if not quotes and (self._in_string or part.isspace()):
            if self._in_string:
                self._keep_name(part)
            self._offset += len(part)
            return
        outside = b"".join(between[1::2] if self._in_string else between[::2])
        brackets = outside.translate(None, _NOT_BRACKETS)
        containers = brackets.count(b"{") + brackets.count(b"[")
        self._check_counts(containers, outside)
        depth, lowest = self._follow(brackets)
        if lowest < 2:
            self._find_fields(part)
        else:
            self._depth = depth
            self._strings += (quotes if self._in_string else quotes + 1) // 2
            self._in_string ^= bool(quotes % 2)
            self._containers += containers
        self._offset += len(part)

    def _check_counts(self, containers: int, outside: bytes) -> None:
        limits = self._limits
        if self._containers + containers > limits.max_containers:
            raise JsonTooComplex(f"it has more than {limits.max_containers} objects and lists")
        self._values += containers + outside.count(b",")
        if self._values > limits.max_values:
            raise JsonTooComplex(f"it has more than {limits.max_values} values")
        self._fractions += max(outside.count(b"."), outside.count(b"e") + outside.count(b"E"))
        if self._fractions > limits.max_fractions:
            raise JsonTooComplex(f"it has more than {limits.max_fractions} numbers with fractions")

    def _follow(self, brackets: bytes) -> tuple[int, int]:
        """Return the depth behind ``brackets``, and the lowest on the way."""
        depth = lowest = highest = self._depth
        for bracket in brackets:
            if bracket in _OPENING:
                depth += 1
                if depth > highest:
                    highest = depth
            else:
                depth -= 1
                if depth < lowest:
                    lowest = depth
        if highest > self._limits.max_depth:
            raise JsonTooComplex(f"it is nested more than {self._limits.max_depth} deep")
        return depth, lowest

    def _find_fields(self, part: bytes) -> None:
        start = 0
        if self._in_string:
            match = _STRING_REST.match(part)
            assert match is not None
            self._keep_name(part[: match.end()])
            start = match.end() + 1
            self._end_string(self._offset + start)
        for token in _TOKEN.finditer(part, start):
            kind = part[token.start()]
            if kind == _QUOTE:
                self._begin_string(self._offset + token.start())
                self._keep_name(part[token.start() + 1 : token.end() - bool(token[1])])
                if token[1]:
                    self._end_string(self._offset + token.end())
            elif kind in _OPENING:
                self._open(kind, self._offset + token.start())
            elif kind in _CLOSING:
                self._close(self._offset + token.end())
            elif self._depth < 2:
                self._take(kind, self._offset + token.start(), self._offset + token.end())

    def _begin_string(self, at: int) -> None:
        self._in_string = True
        if self._depth == 1:
            if self._expects in (_Expects.NAME, _Expects.FIRST_NAME):
                self._name = b""
            else:
                self._begin_value(at)
        elif self._depth == 0:
            raise self._misplaced(at)
        self._strings += 1

    def _end_string(self, end: int) -> None:
        self._in_string = False
        if self._depth != 1:
            return
        if self._expects in (_Expects.NAME, _Expects.FIRST_NAME):
            self._expects = _Expects.COLON
        else:
            self._end_value(end)

    def _keep_name(self, part: bytes) -> None:
        """Collect a field's name, which may lie in two slices."""
        if self._depth == 1 and self._expects in (_Expects.NAME, _Expects.FIRST_NAME):
            self._name += part
            if len(self._name) > MAX_NAME_BYTES:
                raise JsonTooComplex(f"a field's name is longer than {MAX_NAME_BYTES} bytes")

    def _open(self, kind: int, at: int) -> None:
        if self._depth == 1:
            self._begin_value(at)
        elif self._depth == 0:
            if self._expects is not _Expects.DOCUMENT or kind != _BRACE:
                raise self._misplaced(at)
            self._expects = _Expects.FIRST_NAME
            self.object_start = at
        self._depth += 1
        self._containers += 1

    def _close(self, end: int) -> None:
        self._end_scalar()
        self._depth -= 1
        if self._depth == 1:
            self._end_value(end)
        elif self._depth == 0:
            if self._expects not in (_Expects.COMMA, _Expects.FIRST_NAME):
                raise self._misplaced(end - 1)
            self._expects = _Expects.END
        elif self._depth < 0:
            raise self._misplaced(end - 1)

    def _take(self, kind: int, at: int, end: int) -> None:
        """Take a comma, a colon, a number or a literal at the top level."""
        if kind not in (_COLON, _COMMA):
            self._take_scalar(at, end)
            return
        self._end_scalar()
        if kind == _COLON and self._expects is _Expects.COLON:
            self._expects = _Expects.VALUE
        elif kind == _COMMA and self._expects is _Expects.COMMA:
            self._expects = _Expects.NAME
        else:
            raise self._misplaced(at)

    def _take_scalar(self, at: int, end: int) -> None:
        if self._expects is not _Expects.SCALAR:
            self._begin_value(at)
            self._expects = _Expects.SCALAR
        elif at != self._scalar_end:
            raise self._misplaced(at)
        self._scalar_end = end

    def _end_scalar(self) -> None:
        if self._expects is _Expects.SCALAR:
            self._end_value(self._scalar_end)

    def _begin_value(self, at: int) -> None:
        if self._expects is not _Expects.VALUE:
            raise self._misplaced(at)
        self._value = (at, self._strings, self._containers)

    def _end_value(self, end: int) -> None:
        if self._value is None:
            raise self._misplaced(end - 1)
        start, strings, containers = self._value
        name = _decoded(self._name)
        if name in self.fields:
            raise JsonRefused(f"it has the field {name!r} twice")
        if len(self.fields) == self._limits.max_fields:
            raise JsonTooComplex(f"it has more than {self._limits.max_fields} fields")
        self.fields[name] = Field(start, end, self._strings - strings, self._containers - containers)
        self._value = None
        self._expects = _Expects.COMMA

    def _misplaced(self, at: int) -> JsonRefused:
        if self._expects is _Expects.DOCUMENT:
            return JsonRefused("it is not an object")
        return JsonRefused(f"byte {at} is not expected there")


def _decoded(name: bytes) -> str:
    try:
        return str(json.loads(b'"' + name + b'"')) if b"\\" in name else name.decode()
    except ValueError as error:
        raise JsonRefused("a field's name is not text") from error
