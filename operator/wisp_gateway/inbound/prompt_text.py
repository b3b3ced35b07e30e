"""Read from a request what decides its pod: the prompt's text, its salt, its session. Pure.

The text is the JSON of the fields as the client wrote it: a client that sends its history again, longer,
writes the same bytes again. Order is that of the model's context: system, tools, then messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from wisp_gateway.inbound.request_body import RequestBody, string_of

MAX_TEXT_BYTES = 512 * 1024
PREFIX_BYTES = 1024
MAX_SESSION_CHARS = 512
# What the clients of agents send: a convention, Claude Code, Codex, OpenCode.
SESSION_HEADERS = (
    b"x-session-id",
    b"x-claude-code-session-id",
    b"session_id",
    b"session-id",
    b"x-session-affinity",
)
SESSION_FIELDS = ("prompt_cache_key", "session_id")  # OpenAI's; OpenRouter's
_FIRST = ("system", "instructions", "tools")
_PROMPTS = ("messages", "input", "prompt")
# Anthropic's mark of what to cache: clients move it from message to message.
_CACHE_CONTROL = b'"cache_control"'
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]|[^\s"{}\[\],:]++', re.DOTALL)


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text.

    Args:
        parts: fields of the body in canonical order, the first 512 KiB of all.
        prefix: first KiB of each, without white space between values, in which clients differ.
        salt: ``cache_salt``.
    """

    parts: tuple[bytes, ...]
    prefix: bytes
    salt: bytes


def prompt_text(body: RequestBody) -> PromptText | None:
    """Return the text of a body's prompt; None if it has none."""
    prompt = next((name for name in _PROMPTS if name in body.fields), None)
    if prompt is None:
        return None
    parts, left_bytes = list[bytes](), MAX_TEXT_BYTES
    for name in (*_FIRST, prompt):
        field = body.fields.get(name)
        if field is not None and left_bytes:
            part = body.raw[field.start : min(field.end, field.start + left_bytes)]
            left_bytes -= len(part)
            parts.append(_without_marks(part))
    return PromptText(tuple(parts), b"".join(map(_compact, parts)), body.value("cache_salt"))


def session_name(header: Callable[[bytes], str], body: RequestBody) -> str:
    """Return the name of the session that a client gives; empty: none, or one that is too long."""
    for name in SESSION_HEADERS:
        if given := header(name):
            return given if len(given) <= MAX_SESSION_CHARS else ""
    named = next(filter(None, (string_of(body.value(field)) for field in SESSION_FIELDS)), "")
    return named or _user_id(body.value("metadata"))


def _user_id(metadata: bytes) -> str:
    """Return Anthropic's ``metadata.user_id``, in which Claude Code names its session."""
    if len(metadata) > 4 * MAX_SESSION_CHARS or b'"user_id"' not in metadata:
        return ""
    try:
        user_id = json.loads(metadata)["user_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return user_id if isinstance(user_id, str) and len(user_id) <= MAX_SESSION_CHARS else ""


def _without_marks(part: bytes) -> bytes:
    if _CACHE_CONTROL not in part:
        return part
    first, *others = part.split(_CACHE_CONTROL)
    return b"".join(
        between.rstrip(b", ") for between in (first, *(other.partition(b"}")[2] for other in others))
    )


def _compact(part: bytes) -> bytes:
    return b"".join(_TOKEN.findall(part[: 4 * PREFIX_BYTES]))[:PREFIX_BYTES]
