"""Messages of Anthropic's API around their content: ids, usage, reasons of the end, events."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.anthropic.content import BlockEvents, CompleteContent, Event
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.parsing.anthropic.requests import MessagesRequest, shows_thinking


@dataclass
class Answer:
    """The answer to one request, as its deltas come.

    Attributes:
        request: parsed body.
        model: name of the model in the response, whichever the request used.
        choice: sequence of the answer.
    """

    request: MessagesRequest
    model: str
    choice: Choice
    _id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        self._blocks = BlockEvents(shows_thinking=shows_thinking(self.request))
        self._content = CompleteContent()
        self._has_begun = False
        self._end: dict[str, Any] = {}

    def events(self, delta: AnswerDelta) -> Iterator[bytes]:
        """Yield the events of a delta as they are sent."""
        if not self._has_begun:
            self._has_begun = True
            yield _sent({"type": "message_start", "message": self._message([]) | self._diagnostics()})
            yield _sent({"type": "ping"})
        for event in self._block_events(delta):
            yield _sent(event)
        if delta.finish is not None:
            event = {"type": "message_delta", "delta": self._ending(delta), "usage": self._usage()}
            yield _sent(event | self._applied_edits())
            yield _sent({"type": "message_stop"})

    def add(self, delta: AnswerDelta) -> int:
        """Keep a delta for the complete message; return the characters that are kept."""
        if delta.finish is not None:
            self._end = self._ending(delta)
        return self._content.add(self._block_events(delta))

    def complete(self) -> dict[str, Any]:
        """Return the complete message, of the deltas added."""
        message = self._message(self._content.blocks()) | self._end
        return message | self._diagnostics() | self._applied_edits()

    def _block_events(self, delta: AnswerDelta) -> Iterator[Event]:
        for part in delta.parts:
            yield from self._blocks.push(part)
        if delta.finish is not None:
            yield from self._blocks.finish()

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        """Count tokens; those of the prompt that were cached are no ``input_tokens``."""
        choice = self.choice
        thinking_tokens = choice.parser.thinking_tokens
        details = {"thinking_tokens": thinking_tokens}
        return {
            "input_tokens": len(choice.submit.prompt) - choice.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": choice.cached_tokens,
            "output_tokens": choice.generated_tokens,
            **({"output_tokens_details": details} if thinking_tokens is not None else {}),
        }

    def _ending(self, delta: AnswerDelta) -> dict[str, Any]:
        reason = self._stop_reason(delta)
        stop = delta.stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}

    def _stop_reason(self, delta: AnswerDelta) -> str:
        if delta.finish == "length":
            is_context_full = self.choice.submit.max_tokens < self.request.max_tokens and delta.stop is None
            return "model_context_window_exceeded" if is_context_full else "max_tokens"
        if delta.stop is not None:
            return "stop_sequence"
        return "tool_use" if delta.finish == "tool_calls" else "end_turn"

    def _diagnostics(self) -> dict[str, Any]:
        """Say that a cache miss is not explained, to a client that asks."""
        wish = self.request.diagnostics
        if wish is None:
            return {}
        is_asked = wish.previous_message_id is not None
        return {"diagnostics": {"cache_miss_reason": {"type": "unavailable"}} if is_asked else None}

    def _applied_edits(self) -> dict[str, Any]:
        """Say that no edit was applied, to a client that wants them."""
        return {"context_management": {"applied_edits": []}} if self.request.context_management else {}


def _sent(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {to_json(event)}\n\n".encode()
