"""Text deltas of a sequence, from its token events.

Pure: one object a sequence, fed by ``generation.py``. Streamed and complete responses are made of the same
deltas, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_runtime.engine.transport.messages import TokenEvent, TokenLogprobs
from wisp_runtime.server.text.detokenizer import Detokenizer
from wisp_runtime.server.text.stop import StopFinder


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that one token adds to a choice.

    Attributes:
        text: new text, maybe empty.
        finish: finish reason if the choice ends here, or None.
        token: the token, if it belongs to the choice (an end-of-sequence token does not).
        logprobs: log-probabilities of that token, when requested.
        stop: stop string, or id of a token, for which the request asked and that ended the choice, or None.
        generated: the token that was generated, also one that only ends the choice; None if none was.
        begin: place of the token's text in that of the choice, counted also in text that is held back.
    """

    text: str
    finish: Literal["stop", "length"] | None = None
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    stop: str | int | None = None
    generated: int | None = None
    begin: int = 0


class TextDeltas:
    """Detokenize one sequence and search for its stop strings.

    Args:
        stops: stop strings.
        min_tokens: tokens before which no stop string ends the sequence.
        shows_end: whether a token that ends the sequence belongs to the choice.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: StopFinder, *, min_tokens: int = 0, shows_end: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._missing_tokens = min_tokens
        self._shows_end = shows_end
        self._chars = 0

    def push(self, event: TokenEvent) -> TextDelta:
        """Return the delta of ``event``. After a delta with ``finish``, nothing more may be pushed.

        An event whose ``finish`` is abort or error is not text: the caller handles it.
        """
        is_shown = event.token is not None and (self._shows_end or event.finish != "stop")
        may_stop, self._missing_tokens = self._missing_tokens <= 0, self._missing_tokens - 1
        text = self._detokenizer.push(event.token) if is_shown and event.token is not None else ""
        if event.finish is not None:
            text += self._detokenizer.finish()
        begin, self._chars = self._chars, self._chars + len(text)
        text = self._stops.push(text, may_stop=may_stop)
        if event.finish == "stop":
            self._stops.end_at(event.token)
        finish: Literal["stop", "length"] | None = None
        if self._stops.matched is not None or event.finish == "stop":
            finish = "stop"
        elif event.finish == "length":
            finish = "length"
        if finish is not None:
            text += self._stops.finish()
        token, logprobs = (event.token, event.logprobs) if is_shown else (None, None)
        return TextDelta(text, finish, token, logprobs, self._stops.matched, event.token, begin)
