"""Incremental reader of a call written as a JSON object: ``{"name": …, "arguments": {…}}``.

Keys come in any order, and further ones (``id``, ``type``) are skipped. A call is certain as soon as its name
is known and its arguments have begun; from then on they are handed on as they come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Literal

from wisp_runtime.server.answers.parts import MAX_NAME_CHARS, CallArguments, CallStart, Part
from wisp_runtime.server.answers.tools.scanners.json_value import JsonValue, as_unicode, decoded

SPACE = re.compile(r"[ \t\r\n]+")
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
KNOWN_KEYS = ARGUMENT_KEYS | {"name", "id", "type"}


class JsonCall:
    """Reader of one call, from its opening brace on.

    Args:
        number: number of the call in the answer.
        names: names that a call may have, where no marker shows that the object is a call: one with another
            name, or with an unknown key, is none. None where a marker does: any name, any key.

    Attributes:
        status: ``open`` while the object is incomplete, then ``done``, or ``failed`` at the first character
            with which it cannot be a call.
        has_started: whether :meth:`take` has given the start of the call.
    """

    def __init__(self, number: int, names: Collection[str] | None = None) -> None:
        self.status: Literal["open", "done", "failed"] = "open"
        self.has_started = False
        self._number, self._names = number, names
        self._name: str | None = None
        self._has_arguments = False
        self._ready: list[str] = []
        self._role: Literal["name", "arguments", "other"] = "other"
        self._value = JsonValue()
        self._state: Callable[[str, int], int] = self._open

    def push(self, text: str, at: int) -> int:
        """Read ``text`` from ``at``; return the position behind what belongs to the object."""
        while at < len(text) and self.status == "open":
            is_between = self._value.kind is None or self._value.is_done
            space = SPACE.match(text, at) if is_between else None
            at = space.end() if space else self._state(text, at)
        return at

    def take(self) -> list[Part]:
        """Return the parts that became certain since the last call."""
        if self._name is None or not (self._has_arguments or self.status == "done"):
            return []
        parts: list[Part] = [] if self.has_started else [CallStart(self._number, self._name)]
        self.has_started = True
        if not self._has_arguments:
            self._has_arguments, self._ready = True, ["{}"]
        if arguments := "".join(self._ready):
            parts.append(CallArguments(self._number, arguments))
        self._ready.clear()
        return parts

    def _open(self, text: str, at: int) -> int:
        self._state = self._begin_key
        return at + 1 if text[at] == "{" else self._fail(at)

    def _begin_key(self, text: str, at: int) -> int:
        if text[at] == "}":
            return self._close(at)
        self._value, self._state = JsonValue(), self._read_key
        return at if text[at] == '"' else self._fail(at)

    def _read_key(self, text: str, at: int) -> int:
        at = self._value.push(text, at)
        if not self._value.is_done:
            return at
        key = _string(self._value.take())
        if self._names is not None and key not in KNOWN_KEYS:
            return self._fail(at)
        self._role = "other"
        if key == "name" and self._name is None:
            self._role = "name"
        elif key in ARGUMENT_KEYS and not self._has_arguments:
            self._role = "arguments"
        self._state = self._expect_colon
        return at

    def _expect_colon(self, text: str, at: int) -> int:
        self._value, self._state = JsonValue(), self._read_value
        return at + 1 if text[at] == ":" else self._fail(at)

    def _read_value(self, text: str, at: int) -> int:
        value = self._value
        at = value.push(text, at)
        if value.is_failed:
            return self._fail(at)
        if self._role == "other":
            value.take()
        elif self._role == "arguments" and value.kind == "object":
            self._has_arguments = True
            self._ready.append(value.take())
        elif value.is_done and not self._keep(value.take()):
            return self._fail(at)
        if value.is_done:
            self._state = self._expect_next
        return at

    def _keep(self, text: str) -> bool:
        """Keep the name, or arguments that are no object as it stands; return whether a call may."""
        if self._role == "name":
            name = _string(text) or ""
            if not 0 < len(name) <= MAX_NAME_CHARS or (self._names is not None and name not in self._names):
                return False
            self._name = name
            return True
        arguments = _string(text)
        if arguments is None:
            return text == "null"
        if not isinstance(_decoded(arguments), dict):
            return False
        self._has_arguments, self._ready = True, [arguments.strip()]
        return True

    def _expect_next(self, text: str, at: int) -> int:
        if text[at] == "}":
            return self._close(at)
        self._state = self._begin_key
        return at + 1 if text[at] == "," else self._fail(at)

    def _close(self, at: int) -> int:
        self.status = "failed" if self._name is None else "done"
        return at + 1

    def _fail(self, at: int) -> int:
        self.status = "failed"
        return at


def _decoded(text: str) -> object:
    try:
        return decoded(text)
    except ValueError:
        return None


def _string(text: str) -> str | None:
    """Return the text of a JSON string; None if it is anything else."""
    value = _decoded(text)
    return as_unicode(value) if isinstance(value, str) else None
