"""Usage of a request's answer, for the access log, and reported to the gateway alone.

The gateway asks with a header that it passes on from no client. An answer that is not streamed gets a
header, a stream a comment at its end: without a newline, so that the gateway holds it back like any partial
line. Nothing is done per token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from starlette.types import Message, Scope

from wisp_runtime.engine.transport.messages import Submit
from wisp_runtime.server.metrics import NEVER_BEGUN, RequestTimer

HEADER = b"x-wisp-usage"
COMMENT = b": wisp-usage "
_WITHOUT_ANSWER = NEVER_BEGUN | {"error", "abort"}


class CountedChoice(Protocol):
    """The counts of one choice of an answer."""

    submit: Submit
    cached_tokens: int
    generated_tokens: int
    timer: RequestTimer | None


class UsageReport:
    """Token counts of one request, summed over its sequences; each prompt counts once.

    Attributes:
        is_wanted: whether the request's sender asks for the report.
    """

    def __init__(self, *, is_wanted: bool = False) -> None:
        self.is_wanted = is_wanted
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._timer: RequestTimer | None = None

    @contextmanager
    def counting(self, choices: Sequence[CountedChoice]) -> Iterator[None]:
        """Add ``choices`` at the end of the block, however it ends."""
        try:
            yield
        finally:
            for choice in {id(choice.submit.prompt): choice for choice in choices}.values():
                self._prompt_tokens += len(choice.submit.prompt)
                self._cached_tokens += choice.cached_tokens
            self._completion_tokens += sum(choice.generated_tokens for choice in choices)
            self._timer = next((choice.timer for choice in choices if choice.timer), self._timer)

    def add_pooled(self, prompt_tokens: int, cached_tokens: int, timer: RequestTimer) -> None:
        """Add a prompt that was reduced to a vector."""
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += cached_tokens
        self._timer = timer

    def fields(self) -> dict[str, Any]:
        """Return the counts for the access log; none before any sequence ended."""
        timer = self._timer
        if timer is None:
            return {}
        return {
            "first_token_seconds": _rounded(timer.first_token_s),
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "completion_tokens": self._completion_tokens,
            "finish": timer.reason,
        }

    @property
    def counts(self) -> tuple[int, int, int, str] | None:
        """Prompt, cached and completion tokens, and the reason of the end; None before any sequence ended."""
        timer = self._timer
        if timer is None:
            return None
        return self._prompt_tokens, self._cached_tokens, self._completion_tokens, timer.reason

    def phases(self) -> list[tuple[str, float, float]]:
        """Return the phases of its first sequence: name, begin and end on the monotonic clock."""
        return self._timer.phases() if self._timer is not None else []

    def text(self) -> bytes:
        """Return the report as JSON; empty before any sequence ended, of a failure, and if nobody asked."""
        timer = self._timer
        if timer is None or not self.is_wanted:
            return b""
        if timer.first_token_s is None and timer.reason in _WITHOUT_ANSWER:
            return b""
        report = {
            "promptTokens": self._prompt_tokens,
            "cachedTokens": self._cached_tokens,
            "completionTokens": self._completion_tokens,
            "finish": timer.reason,
            "firstTokenSeconds": _rounded(timer.first_token_s),
            "perTokenSeconds": _rounded(timer.per_token_s),
        }
        return json.dumps(report, separators=(",", ":")).encode()


_current: ContextVar[UsageReport | None] = ContextVar("usage_report", default=None)


def open_report(scope: Scope) -> None:
    """Begin the report of a request."""
    _current.set(UsageReport(is_wanted=any(name == HEADER for name, _ in scope["headers"])))


def current() -> UsageReport:
    """Return the report of the request that is being served."""
    return _current.get() or UsageReport()


def with_usage(message: Message) -> Message:
    """Return the start of a complete answer with the report, if one is wanted."""
    report = _current.get()
    text = report.text() if report is not None else b""
    return {**message, "headers": [*message.get("headers", ()), (HEADER, text)]} if text else message


def last_comment() -> bytes:
    """Return the end of a stream: the report, or nothing."""
    report = _current.get()
    text = report.text() if report is not None else b""
    return COMMENT + text if text else b""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
