"""Base of the parsers of tool markups: text until a marker, then the states of the markup.

A state reads from the held text and returns whether it can go on without more. All text since the last
certain part is kept as it was written, so that markup that turns out not to be a call is given back as text.
Each character is looked at a bounded number of times, however the answer was divided.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache

from wisp_runtime.server.answers.parts import CallStart, Part, Text

SPACE = re.compile(r"[ \t\r\n]+")
_SPACE_CHARS = " \t\r\n"


@cache
def _any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))


class MarkupParser(ABC):
    """Parser whose first state finds markers in text. White space beside a call is not text.

    Args:
        openers: texts with which markup may begin anywhere.
        line_opener: character with which it may also begin at the start of a line; empty for none.
    """

    def __init__(self, openers: Sequence[str], line_opener: str = "") -> None:
        self._openers, self._line_opener = tuple(openers), line_opener
        firsts = re.escape("".join(sorted({opener[0] for opener in openers} | set(line_opener))))
        self._plain = re.compile(rf"(?:[ \t\r\n]*+[^ \t\r\n{firsts}]++)++")
        self._held, self._at = "", 0
        self._pending: list[str] = []
        self._collected: list[str] = []
        self._parts: list[Part] = []
        self._calls = 0
        self._is_line_start, self._is_after_call = True, False
        self._state: Callable[[], bool] = self._in_text

    @property
    @abstractmethod
    def is_in_call(self) -> bool:
        """Whether the text that comes next is within a call."""

    @property
    def held_chars(self) -> int:
        """Characters at the end of the text that may yet become text, or markup."""
        return sum(map(len, self._pending)) + len(self._held) - self._at

    def push(self, text: str) -> Sequence[Part]:
        """Add text; return the parts that are certain by now."""
        self._held, self._at = self._held[self._at :] + text, 0
        while self._at < len(self._held) and self._state():
            pass
        return self._take()

    def interrupt(self) -> Sequence[Part]:
        """Return the rest where thinking begins, behind which a call may begin as at the start of a line."""
        parts = self.finish()
        self._collected.clear()
        self._state, self._is_line_start = self._in_text, True
        return parts

    def finish(self) -> Sequence[Part]:
        """Return the rest, once; markup that was begun and is no call is text, as it was written."""
        self._end()
        self._pending.append(self._held[self._at :])
        self._at = len(self._held)
        self._emit_text("")
        return self._take()

    @abstractmethod
    def _end(self) -> None:
        """Complete what the end of the answer completes, before pending and held text become text."""

    @abstractmethod
    def _opened(self, opener: str, /) -> None:
        """Set the state behind an opener, which is pending; the line opener is not read yet."""

    def _in_text(self) -> bool:
        if self._skips_space():
            return True
        for opener in self._openers:
            if self._held.startswith(opener, self._at):
                self._skip(self._at + len(opener))
                self._opened(opener)
                return True
        if self._is_line_start and self._held[self._at] == self._line_opener:
            self._opened("")
            return True
        if self._is_partial(self._openers):
            return False
        run = self._plain.match(self._held, self._at)
        end = run.end() if run else self._at + 1
        self._emit_text(self._held[self._at : end])
        self._at = end
        return True

    def _skips_space(self) -> bool:
        """Read white space; return whether there was any."""
        space = SPACE.match(self._held, self._at)
        if space is None:
            return False
        self._is_line_start |= "\n" in space.group()
        return self._skip(space.end())

    def _skip(self, end: int) -> bool:
        """Read up to ``end`` as markup or white space; True, for a state's result."""
        self._pending.append(self._held[self._at : end])
        self._at = end
        return True

    def _is_partial(self, markers: Sequence[str]) -> bool:
        """Return whether all held text may yet become one of the markers."""
        rest = len(self._held) - self._at
        return any(rest < len(marker) and marker.startswith(self._held[self._at :]) for marker in markers)

    def _collect(self, markers: Sequence[str]) -> str | None:
        """Read up to the first of the markers into ``_collected``, and the marker; return it once it came."""
        found = _any_of(tuple(markers)).search(self._held, self._at)
        end = found.start() if found else len(self._held) - self._partial_chars(markers)
        self._collected.append(self._held[self._at : end])
        self._skip(found.end() if found else end)
        return found.group() if found else None

    def _partial_chars(self, markers: Sequence[str]) -> int:
        """Return how many characters at the end of the held text may begin one of the markers."""
        longest = min(max(map(len, markers)) - 1, len(self._held) - self._at)
        for chars in range(longest, 0, -1):
            end = self._held[-chars:]
            if any(marker.startswith(end) for marker in markers):
                return chars
        return 0

    def _collected_text(self) -> str:
        """Return what was collected, and forget it."""
        text = "".join(self._collected)
        self._collected.clear()
        return text

    def _to_text(self) -> bool:
        """Go on with text, to which pending markup belongs; white space at its end may be beside a call."""
        pending = "".join(self._pending)
        marked = pending.rstrip(_SPACE_CHARS)
        self._pending = [marked]
        if marked:
            self._emit_text("")
        self._pending = [pending[len(marked) :]]
        self._is_line_start |= "\n" in pending[len(marked) :]
        self._collected.clear()
        self._state = self._in_text
        return True

    def _emit_text(self, text: str) -> None:
        text = "".join(self._pending) + text
        self._pending.clear()
        if self._is_after_call:
            text = text.lstrip(_SPACE_CHARS)
        if text:
            self._parts.append(Text(text))
            self._is_after_call = self._is_line_start = False

    def _emit(self, parts: Sequence[Part]) -> None:
        """Add parts of a call: what was pending is its markup."""
        if parts:
            self._pending.clear()
            self._is_after_call = True
            self._parts += parts
            self._calls += sum(isinstance(part, CallStart) for part in parts)

    def _drop(self, end: int) -> bool:
        """Read markup up to ``end`` that ends a call, and forget what is pending; True."""
        self._at = end
        self._pending.clear()
        return True

    def _take(self) -> Sequence[Part]:
        parts, self._parts = self._parts, []
        return parts
