"""The output of a response: parts of an answer become items, and events of a stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wisp_runtime.server.answers.parts import AnswerDelta, CallArguments, CallStart, Part, Text, Thinking
from wisp_runtime.server.api.logprobs import TokenNames
from wisp_runtime.server.api.responses.events import Event
from wisp_runtime.server.api.responses.output_items import (
    CallOutput,
    MessageOutput,
    OutputItem,
    ReasoningOutput,
    Status,
)
from wisp_runtime.server.api.responses.text_logprobs import TextLogprobs


class Output:
    """Items of one answer, in order; the last may be under way.

    Args:
        names: names of tokens, for log-probabilities; None reports none.
        is_summarized: whether thinking is written as a summary.
        is_encoded: whether thinking is also written as ``encrypted_content``.
        namespaces: name and namespace of functions, by the name that the model knows.

    Attributes:
        items: items so far.
        kept_chars: characters of the items.
    """

    def __init__(
        self,
        names: TokenNames | None,
        *,
        is_summarized: bool,
        is_encoded: bool,
        namespaces: Mapping[str, tuple[str, str]],
    ) -> None:
        self._namespaces, self._logprobs = namespaces, TextLogprobs(names)
        self._is_summarized, self._is_encoded = is_summarized, is_encoded
        self.items: list[OutputItem] = []
        self.kept_chars = 0

    def push(self, delta: AnswerDelta) -> list[Event]:
        """Add what a token adds; return its events."""
        parts = self._logprobs.push(delta)
        events = [event for part, entries in parts for event in self._add(part, entries)]
        if delta.finish is not None:
            events += self.close("incomplete" if delta.finish == "length" else "completed")
        return events

    def close(self, status: Status) -> list[Event]:
        """End the item under way; an answer without any item has an empty message."""
        events: list[Event] = []
        if not self.items:
            events += self._begin(MessageOutput(0))
        if self.items[-1].status == "in_progress":
            events += self.items[-1].end(status)
        return events

    def json(self) -> list[str]:
        """Return the items as JSON texts."""
        return [item.json() for item in self.items]

    def _add(self, part: Part, entries: Sequence[str]) -> list[Event]:
        events: list[Event] = []
        if self._needs_item(part):
            events += self._begin(self._item_of(part))
        if isinstance(part, CallStart):
            self.kept_chars += len(part.name)
            return events
        item = self.items[-1]
        if isinstance(item, MessageOutput):
            events.append(item.add(part.text, entries))
            self.kept_chars += sum(map(len, entries))
        else:
            events.append(item.add(part.text))
        self.kept_chars += len(part.text)
        return events

    def _needs_item(self, part: Part) -> bool:
        match part:
            case CallStart():
                return True
            case CallArguments():
                return False
            case Text():
                return not (self.items and isinstance(self.items[-1], MessageOutput))
            case Thinking():
                return not (self.items and isinstance(self.items[-1], ReasoningOutput))

    def _item_of(self, part: Part) -> OutputItem:
        index = len(self.items)
        match part:
            case CallStart(_, name):
                return CallOutput(index, *self._namespaces.get(name, (name, None)))
            case Thinking():
                return ReasoningOutput(index, is_summary=self._is_summarized, is_encoded=self._is_encoded)
            case _:
                return MessageOutput(index)

    def _begin(self, item: OutputItem) -> list[Event]:
        ended = self.items[-1].end("completed") if self.items else []
        self.items.append(item)
        return [*ended, *item.begin()]
