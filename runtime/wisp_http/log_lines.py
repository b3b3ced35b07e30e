"""Format of a program's log: a line of text or a JSON object a record, each with its request's id.

A record is one line (a traceback of a text record follows in indented lines) and control characters are
escaped, so that a client's text cannot forge a record. The access log has no word of a prompt or an answer.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextvars import ContextVar
from typing import Any, TextIO

FORMATS = ("text", "json")
FIELDS = "fields"  # attribute of a record: further fields by name, each a string or a number
MAX_FIELD_CHARS = 512
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that the running task serves; empty elsewhere."""
_BREAKING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BARE = re.compile(r"[!#-<>-\[\]-~]+")  # one word of printable ASCII without quote, equals sign and backslash


def set_up_log(level: str, form: str, stream: TextIO | None = None) -> None:
    """Write this process's log to ``stream``, stderr by default.

    Args:
        level: least severe level that is logged, in any case.
        form: one of ``FORMATS``.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, request, further fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; its own fields cannot take the place of the first four."""
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = _fields(record)
        line |= {name: value for name, value in fields.items() if value is not None and name not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII, so that no character ends the line


class TextLines(logging.Formatter):
    """Time, level, logger and message; then fields as ``name=value``; a traceback in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        fields = "".join(
            f" {name}={_word(value)}" for name, value in _fields(record).items() if value not in (None, "")
        )
        message = one_line(record.getMessage())
        line = f"{_time(record.created)} {record.levelname:<7} {record.name}: {message}{fields}"
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"    {one_line(part)}" for part in traceback)])


def one_line(text: str) -> str:
    """Return ``text`` with every control character, and all that ends a line, written as an escape."""
    return _BREAKING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, FIELDS, {})
    current = request_id.get()
    return fields if not current or "request" in fields else {"request": current, **fields}


def _word(value: object) -> str:
    """Return a value as one word, in quotes unless it is one already."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)[:MAX_FIELD_CHARS]
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _time(seconds: float) -> str:
    """Return a time as RFC 3339 has it, in UTC, to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03}Z"
