"""Parts of an answer: what a formatter of any API dialect is given, in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_runtime.engine.transport.messages import TokenLogprobs

Finish = Literal["stop", "length", "tool_calls"]
MAX_NAME_CHARS = 256
"""Characters of a call's name. Markup with a longer one, or with none, is text: no history could hold it."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Text of the model's reasoning, never empty and without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Beginning of a tool call; its arguments follow, and no other part before they are complete.

    Attributes:
        call: number of the call in the answer, from 0.
        name: name of the function, as the model wrote it: 1 to ``MAX_NAME_CHARS`` characters.
    """

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Further JSON text of a call's arguments; together they are one JSON object.

    Attributes:
        call: its number.
        text: JSON text, never empty.
    """

    call: int
    text: str


Part = Text | Thinking | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What one token adds to an answer.

    Attributes:
        parts: new parts, maybe none.
        finish: reason for which the answer ends here, or None.
        stop: stop string, or id of a token, that ended it as the request asks, or
            :data:`.repetition.STOP_REASON`; None otherwise.
        token: the token, if it belongs to the answer (an end-of-sequence token does not).
        logprobs: log-probabilities of that token, when requested.
        generated: the token that was generated, also one that only ends the answer; None if none was.
        is_thinking: whether the token is of the model's thinking, or one of its markers.
        begin: place of the token's text in the text of the answer, markers included.
        read: text of the answer, markers included, that was read for this delta.
        held_chars: characters at its end that are in no part yet, nor in a marker; 0 where no token has
            log-probabilities.
    """

    parts: tuple[Part, ...]
    finish: Finish | None = None
    stop: str | int | None = None
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    generated: int | None = None
    is_thinking: bool = False
    begin: int = 0
    read: str = ""
    held_chars: int = 0

    @property
    def text(self) -> str:
        """Text for the user that the token adds."""
        return "".join([part.text for part in self.parts if isinstance(part, Text)])

    @property
    def has_repeated(self) -> bool:
        """Whether it ends here because it repeats itself: ``stop`` is no stop string then."""
        return self.finish == "length" and self.stop is not None
