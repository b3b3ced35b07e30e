"""Content of an answer of Anthropic's API: blocks of thinking, text and calls, streamed or complete.

Complete content is made of the stream's events, so it is what a client accumulates.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from wisp_runtime.server.answers.parts import CallArguments, CallStart, Part, Text, Thinking
from wisp_runtime.server.api.anthropic.signature import digest_signature, text_signature

MAX_BLANK_CHARS = 1024  # whitespace that is held back at most
Event = dict[str, Any]


class BlockEvents:
    """Events of the blocks of one answer.

    Args:
        shows_thinking: whether the text of thinking is sent.
    """

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._kind: str | None = None
        self._blank = ""
        self._thoughts: list[str] = []

    def push(self, part: Part) -> Iterator[Event]:
        """Yield the events of a part. Text that is only whitespace waits: alone it makes no block."""
        match part:
            case Text(text):
                text = self._blank + text
                is_text = self._kind == "text" or len(text) > MAX_BLANK_CHARS or not text.isspace()
                self._blank = "" if is_text else text
                if is_text:
                    yield from self._open("text", {"type": "text", "text": ""})
                    yield self._delta({"type": "text_delta", "text": text})
            case Thinking(text):
                yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._thoughts.append(text)
                if self._shows_thinking:
                    yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallStart(call, name):
                use = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": name, "input": {}}
                yield from self._open(f"tool_use {call}", use)
                yield self._delta({"type": "input_json_delta", "partial_json": ""})
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def finish(self) -> Iterator[Event]:
        """Yield the events that close the last block."""
        if self._kind == "thinking":
            text = "".join(self._thoughts)
            signature = digest_signature(text) if self._shows_thinking else text_signature(text)
            yield self._delta({"type": "signature_delta", "signature": signature})
            self._thoughts.clear()
        if self._kind is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._kind = None

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[Event]:
        """Yield the events that close another block and open one, unless one of that kind is open."""
        self._blank = ""
        if kind == self._kind:
            return
        yield from self.finish()
        self._kind = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


class CompleteContent:
    """Blocks of an answer that is kept until its end."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[list[str]] = []

    def add(self, events: Iterable[Event]) -> int:
        """Keep events; return the characters that are kept."""
        kept_chars = 0
        for event in events:
            match event:
                case {"content_block": block}:
                    self._blocks.append(block)
                    self._texts.append([])
                    kept_chars += len(block.get("name", ""))
                case {"delta": {"signature": signature}}:
                    self._blocks[-1]["signature"] = signature
                    kept_chars += len(signature)
                case {"delta": {"text": text} | {"thinking": text} | {"partial_json": text}}:
                    self._texts[-1].append(text)
                    kept_chars += len(text)
        return kept_chars

    def blocks(self) -> list[dict[str, Any]]:
        """Return the complete blocks."""
        for block, texts in zip(self._blocks, self._texts, strict=True):
            text = "".join(texts)
            if block["type"] == "tool_use":
                block["input"] = parsed_input(text)
            else:
                block[block["type"]] = text
        return self._blocks


def parsed_input(text: str) -> dict[str, Any]:
    """Return the input of a call: of JSON that was cut off, the values that are complete.

    Clients that accumulate a stream read it alike. Text that is no JSON object stands in the place in which
    Anthropic's clients put it.
    """
    try:
        value = from_json(text, allow_partial=True, allow_inf_nan=False) if text else {}
        json.dumps(value, allow_nan=False)  # 1e999 is JSON, but no number
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}
