"""One response from its creation to its end: its status, its output, its events. Pure but for the clock."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Literal

from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.responses.events import Event
from wisp_runtime.server.api.responses.output import Output

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Answer:
    """A response.

    Args:
        head: fields of the response that never change.
        choice: its sequence.
        output: its output, empty.
        is_queued: whether it may wait for its first token, seen by clients.

    Attributes:
        status: its status.
        is_stored: whether it is kept, or is to be.
    """

    def __init__(self, head: dict[str, Any], choice: Choice, output: Output, *, is_queued: bool) -> None:
        self.id: str = head["id"]
        self.status: Status = "queued" if is_queued else "in_progress"
        self.is_stored: bool = head["store"]
        self._head = to_json({name: value for name, value in head.items() if name != "store"})[:-1]
        self._choice, self._output = choice, output
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, str] | None = None
        self._completed_s: int | None = None
        self._has_begun = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status not in ("queued", "in_progress")

    @property
    def kept_chars(self) -> int:
        """Characters of its output."""
        return self._output.kept_chars

    def create(self) -> list[Event]:
        """Return its first events."""
        events = [self._event("response.created")]
        return [*events, self._event("response.queued")] if self.status == "queued" else events

    def push(self, delta: AnswerDelta) -> list[Event]:
        """Add what a token adds; return its events."""
        events: list[Event] = []
        if not self._has_begun:
            self._has_begun, self.status = True, "in_progress"
            events.append(self._event("response.in_progress"))
        events += self._output.push(delta)
        if delta.finish is None:
            return events
        if delta.finish == "length":
            self.status, self._incomplete = "incomplete", {"reason": "max_output_tokens"}
            if delta.has_repeated:  # a reason that clients do not know
                self._incomplete["stop_reason"] = str(delta.stop)
        else:
            self.status, self._completed_s = "completed", int(time.time())
        return [*events, self.last_event()]

    def fail(self, error: ApiError) -> list[Event]:
        """End it with an error."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        ended = self._end("failed")
        self._error = {"code": _code(error), "message": error.message}
        return [*ended, Event("error", to_json(fields)[1:-1]), self.last_event()]

    def last_event(self) -> Event:
        """Return the event of its end, as the response is now."""
        return self._event(f"response.{self.status}")

    def cancel(self) -> list[Event]:
        """End it as its client asks. No event has that name: streams end as of an incomplete response."""
        return [*self._end("cancelled"), self._event("response.incomplete")]

    def forget(self) -> None:
        """Forget the output: there is no place for it."""
        self._output.items.clear()

    def json(self) -> str:
        """Return the response as JSON text."""
        changing = {
            "status": self.status,
            "store": self.is_stored,
            "completed_at": self._completed_s,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "usage": self._usage() if self.is_over else None,
        }
        return f'{self._head},"output":[{",".join(self._output.json())}],{to_json(changing)[1:]}'

    def items(self) -> list[tuple[str, str]]:
        """Return ids and JSON texts of its output."""
        return [(item.id, item.json()) for item in self._output.items]

    def _end(self, status: Status) -> list[Event]:
        self.status = status
        return self._output.close("incomplete") if self._output.items else []

    def _event(self, kind: str) -> Event:
        return Event(kind, f'"response":{self.json()}')

    def _usage(self) -> dict[str, Any]:
        choice = self._choice
        given, written = len(choice.submit.prompt), choice.generated_tokens
        thinking_tokens = choice.parser.thinking_tokens or 0
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": choice.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": thinking_tokens},
            "total_tokens": given + written,
        }


def _code(error: ApiError) -> str:
    """Return the code of a failed response, of those that OpenAI's clients know."""
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_prompt"
