"""Items of a response's output while they are written: their events, and their JSON at any time. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from wisp_runtime.server.api.chat_format import new_call_id
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.responses.events import Event
from wisp_runtime.server.parsing.responses.items import encoded_thinking, new_id

Status = Literal["in_progress", "completed", "incomplete"]


class OutputItem(ABC):
    """An item under way.

    Attributes:
        id: its id.
        status: its status.

    Args:
        index: its place in the output.
        prefix: prefix of its id.
    """

    def __init__(self, index: int, prefix: str) -> None:
        self.id = new_id(prefix)
        self.status: Status = "in_progress"
        self._index = index
        self._place = f'"item_id":"{self.id}","output_index":{index},'
        self._texts: list[str] = []

    def begin(self) -> list[Event]:
        """Return the events with which it begins."""
        return [self._item_event("response.output_item.added")]

    @abstractmethod
    def add(self, text: str) -> Event:
        """Add text; return the event of it."""

    def end(self, status: Status) -> list[Event]:
        """Return the events with which it ends."""
        self.status = status
        return [*self._contents_done(), self._item_event("response.output_item.done")]

    @abstractmethod
    def json(self) -> str:
        """Return the item as JSON text."""

    @abstractmethod
    def _contents_done(self) -> list[Event]:
        """Return the events with which its content ends."""

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _event(self, kind: str, fields: str) -> Event:
        return Event(kind, self._place + fields)

    def _item_event(self, kind: str) -> Event:
        return Event(kind, f'"output_index":{self._index},"item":{self.json()}')


class MessageOutput(OutputItem):
    """A message of one text."""

    def __init__(self, index: int) -> None:
        super().__init__(index, "msg")
        self._entries: list[str] = []
        self._has_part = False

    def begin(self) -> list[Event]:
        added = super().begin()
        self._has_part = True
        return [*added, self._part_event("response.content_part.added")]

    def add(self, text: str, entries: Sequence[str] = ()) -> Event:
        """Add text, with the log-probabilities of its tokens as JSON texts; return the event of it."""
        self._texts.append(text)
        self._entries += entries
        logprobs = ",".join(entries)
        fields = f'"content_index":0,"delta":{to_json(text)},"logprobs":[{logprobs}]'
        return self._event("response.output_text.delta", fields)

    def json(self) -> str:
        content = self._part() if self._has_part else ""
        return (
            f'{{"id":"{self.id}","type":"message","status":"{self.status}","role":"assistant",'
            f'"content":[{content}]}}'
        )

    def _contents_done(self) -> list[Event]:
        text, logprobs = to_json(self._text), ",".join(self._entries)
        fields = f'"content_index":0,"text":{text},"logprobs":[{logprobs}]'
        done = self._event("response.output_text.done", fields)
        return [done, self._part_event("response.content_part.done")]

    def _part(self) -> str:
        text, logprobs = to_json(self._text), ",".join(self._entries)
        return f'{{"type":"output_text","text":{text},"annotations":[],"logprobs":[{logprobs}]}}'

    def _part_event(self, kind: str) -> Event:
        return self._event(kind, f'"content_index":0,"part":{self._part()}')


class ReasoningOutput(OutputItem):
    """Thinking: as content, or as a summary for clients that asked for one.

    Args:
        index: its place in the output.
        is_summary: whether it is written as a summary.
        is_encoded: whether ``encrypted_content`` has it too, once it is complete.
    """

    def __init__(self, index: int, *, is_summary: bool, is_encoded: bool) -> None:
        super().__init__(index, "rs")
        self._field, self._type = ("summary", "summary_text") if is_summary else ("content", "reasoning_text")
        self._part_kind = "response.reasoning_summary_part" if is_summary else "response.content_part"
        self._text_kind = "response.reasoning_summary_text" if is_summary else "response.reasoning_text"
        self._number = '"summary_index":0' if is_summary else '"content_index":0'
        self._is_encoded = is_encoded
        self._has_part = False

    def begin(self) -> list[Event]:
        added = super().begin()
        self._has_part = True
        return [*added, self._part_event("added")]

    def add(self, text: str) -> Event:
        self._texts.append(text)
        return self._event(f"{self._text_kind}.delta", f'{self._number},"delta":{to_json(text)}')

    def json(self) -> str:
        item: dict[str, Any] = {"id": self.id, "type": "reasoning", "status": self.status}
        item |= {"summary": [], "content": []}
        if self._has_part:
            item[self._field] = [self._part()]
        if self._is_encoded and self.status != "in_progress":
            item["encrypted_content"] = encoded_thinking(self._text)
        return to_json(item)

    def _contents_done(self) -> list[Event]:
        fields = f'{self._number},"text":{to_json(self._text)}'
        return [self._event(f"{self._text_kind}.done", fields), self._part_event("done")]

    def _part(self) -> dict[str, str]:
        return {"type": self._type, "text": self._text}

    def _part_event(self, moment: str) -> Event:
        return self._event(f"{self._part_kind}.{moment}", f'{self._number},"part":{to_json(self._part())}')


class CallOutput(OutputItem):
    """A call of a function."""

    def __init__(self, index: int, name: str, namespace: str | None = None) -> None:
        super().__init__(index, "fc")
        self._name, self._namespace = name, namespace
        self._call_id = new_call_id()

    def add(self, text: str) -> Event:
        self._texts.append(text)
        return self._event("response.function_call_arguments.delta", f'"delta":{to_json(text)}')

    def json(self) -> str:
        return to_json(
            {
                "id": self.id,
                "type": "function_call",
                "status": self.status,
                "call_id": self._call_id,
                "name": self._name,
                "arguments": self._text,
                **({"namespace": self._namespace} if self._namespace else {}),
            }
        )

    def _contents_done(self) -> list[Event]:
        fields = f'"name":{to_json(self._name)},"arguments":{to_json(self._text)}'
        return [self._event("response.function_call_arguments.done", fields)]
