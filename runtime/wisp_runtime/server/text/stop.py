"""Find the first stop string in text that arrives in parts.

Pure. The stop that is complete first wins; of two that end at the same character, the one that began
earlier. So the outcome depends on the text alone, never on how it was divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class StopStrings:
    """Stop strings of a request, prepared once for all its choices.

    Attributes:
        strings: stop strings, none of them empty.
        is_shown: whether the text ends behind the stop string, not before it.
        tokens: names of the tokens that the request stops at: a stop string, or the token's own id.
        beginnings: every proper beginning of one: text that ends in it is undecided.
        longest: characters of the longest beginning.
    """

    def __init__(
        self,
        strings: Sequence[str],
        *,
        is_shown: bool = False,
        tokens: Mapping[int, str | int] | None = None,
    ) -> None:
        self.strings = tuple(strings)
        self.is_shown = is_shown
        self.tokens = tokens or {}
        self.beginnings = frozenset(stop[:end] for stop in self.strings for end in range(1, len(stop)))
        self.longest = max(map(len, self.beginnings), default=0)


class StopFinder:
    """Text in, text up to the stop string out. Push text deltas, then call :meth:`finish` once.

    Attributes:
        matched: the stop string, or id of a token, that ended the text, or None so far.
    """

    def __init__(self, stops: StopStrings) -> None:
        self.matched: str | int | None = None
        self._stops = stops
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Add text; return the text that can no longer be part of a stop string.

        Args:
            may_stop: whether a stop string that this text completes ends it.
        """
        if self.matched is not None:
            return ""
        known, text = len(self._held), self._held + text
        if may_stop and (match := self._first_match(text, known)):
            start, stop = match
            self.matched, self._held = stop, ""
            return text[: start + len(stop)] if self._stops.is_shown else text[:start]
        kept = len(text) - self._undecided(text)
        self._held = text[kept:]
        return text[:kept]

    def end_at(self, token: int | None) -> None:
        """Take in the token that ended the text, if no stop string did before."""
        if self.matched is None and token is not None:
            self.matched = self._stops.tokens.get(token)

    def finish(self) -> str:
        """Return the text held back for a stop string that did not come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, known: int) -> tuple[int, str] | None:
        """Return the first stop string that ends behind the ``known`` characters, and its place."""
        starts = [(text.find(stop, max(0, known + 1 - len(stop))), stop) for stop in self._stops.strings]
        matches = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        return min(matches)[1:] if matches else None

    def _undecided(self, text: str) -> int:
        """Return the length of the longest end of ``text`` with which a stop string begins."""
        for length in range(min(len(text), self._stops.longest), 0, -1):
            if text[-length:] in self._stops.beginnings:
                return length
        return 0
