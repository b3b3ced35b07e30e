"""Parser of calls written as JSON objects between markers: Hermes, Mistral's first form, Llama 3."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wisp_runtime.server.answers.tools.scanners.json_call import JsonCall
from wisp_runtime.server.answers.tools.scanners.markup_parser import MarkupParser


class JsonCallsParser(MarkupParser):
    """Parser of objects behind an opener: one, several, or a list of them.

    Args:
        openers: markers before calls.
        closers: markers behind them, which may be missing.
        names: with names, an object at the start of a line is a call too if it has one of them.
    """

    def __init__(
        self, openers: Sequence[str], closers: Sequence[str] = (), names: Collection[str] | None = None
    ) -> None:
        super().__init__(openers, "" if names is None else "{")
        self._closers, self._names = closers, names
        self._call = JsonCall(0)
        self._is_list = False

    @property
    def is_in_call(self) -> bool:
        return self._state == self._in_call

    def _opened(self, opener: str) -> None:
        self._is_list = False
        if opener:
            self._state = self._before_call
        else:
            self._begin_call(self._names)

    def _end(self) -> None:
        if self._state in (self._after_call, self._before_next):
            self._drop(len(self._held))

    def _before_call(self) -> bool:
        """Expect an object, or a list of them."""
        if self._skips_space():
            return True
        char = self._held[self._at]
        if char == "[" and not self._is_list:
            self._is_list = True
            return self._skip(self._at + 1)
        return self._begin_call(None) if char == "{" else self._to_text()

    def _begin_call(self, names: Collection[str] | None) -> bool:
        self._call, self._state = JsonCall(self._calls, names), self._in_call
        return True

    def _in_call(self) -> bool:
        self._skip(self._call.push(self._held, self._at))
        self._emit(self._call.take())
        if self._call.has_started:
            self._pending.clear()
        if self._call.status == "open":
            return False
        self._state = self._after_call
        return True if self._call.has_started else self._to_text()

    def _after_call(self) -> bool:
        """Expect a closer, the end of a list, or a separator and the next call.

        A brace too many, as models write it behind nested arguments, is markup if no text follows.
        """
        if self._skips_space():
            return True
        for closer in self._closers:
            if self._held.startswith(closer, self._at):
                self._drop(self._at + len(closer))
                return self._to_text()
        if self._is_partial(self._closers):
            return False
        char = self._held[self._at]
        if char == "]" and self._is_list:
            self._is_list = False
            return self._drop(self._at + 1)
        if char == "}":
            return self._skip(self._at + 1)
        if char in ",;":
            self._state = self._before_next
            return self._skip(self._at + 1)
        return self._begin_call(self._names) if char == "{" else self._to_text()

    def _before_next(self) -> bool:
        """Expect the next object behind a separator."""
        if self._skips_space():
            return True
        return self._begin_call(self._names) if self._held[self._at] == "{" else self._to_text()
