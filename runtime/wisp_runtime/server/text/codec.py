"""From a sequence's token events to the text its client sees.

Pure: one object a sequence, fed by ``generation.py``. Streamed and collected answers are made of the
same pieces, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_runtime.engine.transport.messages import TokenEvent, TokenLogprobs
from wisp_runtime.server.text.detokenizer import Detokenizer
from wisp_runtime.server.text.stop import StopFinder


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to an answer.

    Attributes:
        text: new text, maybe none.
        finish: why the answer ends here, or None.
        token: the token, if it belongs to the answer (an end-of-sequence token does not).
        logprobs: of that token, when they were asked for.
    """

    text: str
    finish: Literal["stop", "length"] | None = None
    token: int | None = None
    logprobs: TokenLogprobs | None = None


class AnswerText:
    """Follow one sequence: detokenize, and look for its stop strings."""

    def __init__(self, detokenizer: Detokenizer, stops: StopFinder) -> None:
        self._detokenizer = detokenizer
        self._stops = stops

    def take(self, event: TokenEvent) -> Piece:
        """Return what ``event`` adds. After a piece with ``finish``, nothing more may be taken.

        An event whose ``finish`` is abort or error is not text: the caller deals with it.
        """
        is_shown = event.token is not None and event.finish != "stop"
        text = self._detokenizer.push(event.token) if is_shown and event.token is not None else ""
        if event.finish is not None:
            text += self._detokenizer.finish()
        text = self._stops.push(text)
        finish: Literal["stop", "length"] | None = None
        if self._stops.found is not None or event.finish == "stop":
            finish = "stop"
        elif event.finish == "length":
            finish = "length"
        if finish is not None:
            text += self._stops.finish()
        return Piece(text, finish, event.token if is_shown else None, event.logprobs if is_shown else None)
