"""JSON of chat completions: chunks of a stream, and complete choices."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from wisp_runtime.server.answers.parts import AnswerDelta, CallArguments, CallStart, Part, Text, Thinking
from wisp_runtime.server.api.logprobs import TokenNames, chat_entry, to_json
from wisp_runtime.server.api.respond import stop_reason


def new_call_id() -> str:
    """Return an id for a tool call."""
    return f"call_{uuid.uuid4().hex[:24]}"


class CompleteAnswer:
    """An answer that is kept until its end.

    Attributes:
        calls: tool calls, as OpenAI's JSON.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._arguments: list[list[str]] = []

    def add(self, part: Part) -> int:
        """Keep a part; return its characters."""
        match part:
            case Text(text):
                self._texts.append(text)
            case Thinking(text):
                self._thoughts.append(text)
            case CallStart(_, name):
                self.calls.append({"id": new_call_id(), "type": "function", "function": {"name": name}})
                self._arguments.append([])
                return len(name)
            case CallArguments(call, text):
                self._arguments[call].append(text)
        return len(text)

    def message(self) -> dict[str, Any]:
        """Return the assistant's message."""
        text = "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._thoughts:
            message["reasoning_content"] = message["reasoning"] = "".join(self._thoughts)
        if self.calls:
            for call, arguments in zip(self.calls, self._arguments, strict=True):
                call["function"]["arguments"] = "".join(arguments)
            message |= {"content": text or None, "tool_calls": self.calls}
        return message


class ChatFormatter:
    """One choice of a chat completion."""

    def __init__(
        self,
        index: int,
        names: TokenNames,
        *,
        with_logprobs: bool,
        with_token_ids: bool = False,
        with_thinking: bool = True,
    ) -> None:
        self._index = index
        self._names = names
        self._with_logprobs = with_logprobs
        self._with_token_ids = with_token_ids
        self._with_thinking = with_thinking
        self._token_ids: list[int] = []
        self._has_begun = False
        self._answer = CompleteAnswer()
        self._entries: list[str] = []
        self._finish: str | None = None
        self._stop: str | int | None = None

    def chunks(self, delta: AnswerDelta) -> list[str]:
        """Return a first delta with the role, then deltas of parts, then an empty one with the reason."""
        chunks = [] if self._has_begun else [self._chunk({"role": "assistant", "content": ""})]
        self._has_begun = True
        contents = [_content(part) for part in self._shown(delta)]
        entry, ids = self._entry(delta), self._ids(delta)
        if (entry or (ids and delta.finish is None)) and not contents:
            contents.append({"content": ""})
        for content in contents:
            chunks.append(self._chunk(content, entry, ids=ids))
            entry, ids = None, []
        if delta.finish is not None:
            chunks.append(self._chunk({}, finish=delta.finish, stop=delta.stop, ids=ids))
        return chunks

    def add(self, delta: AnswerDelta) -> int:
        """Keep a delta for the complete message; return the characters that are kept."""
        self._finish, self._stop = delta.finish, delta.stop
        self._token_ids += self._ids(delta)
        entry = self._entry(delta)
        if entry is not None:
            self._entries.append(entry)
        return sum(map(self._answer.add, self._shown(delta))) + len(entry or "")

    def choice(self, index: int) -> str:
        """Return the complete message as choice ``index``."""
        content = ",".join(self._entries)
        logprobs = f'{{"content":[{content}],"refusal":null}}' if self._with_logprobs else "null"
        return (
            f'{{"index":{index},"message":{to_json(self._answer.message())},"logprobs":{logprobs},'
            f'"finish_reason":{to_json(self._finish)}{stop_reason(self._stop)}'
            f"{self._ids_text(self._token_ids)}}}"
        )

    def _shown(self, delta: AnswerDelta) -> list[Part]:
        return [part for part in delta.parts if self._with_thinking or not isinstance(part, Thinking)]

    def _shows(self, delta: AnswerDelta) -> bool:
        """Return whether the client is shown the token of a delta."""
        return self._with_thinking or not delta.is_thinking

    def _ids(self, delta: AnswerDelta) -> list[int]:
        if delta.generated is None or not self._with_token_ids or not self._shows(delta):
            return []
        return [delta.generated]

    def _ids_text(self, ids: Sequence[int]) -> str:
        return f',"token_ids":{to_json(ids)}' if self._with_token_ids else ""

    def _entry(self, delta: AnswerDelta) -> str | None:
        return chat_entry(self._names, delta) if self._with_logprobs and self._shows(delta) else None

    def _chunk(
        self,
        content: dict[str, Any],
        entry: str | None = None,
        finish: str | None = None,
        stop: str | int | None = None,
        ids: Sequence[int] = (),
    ) -> str:
        logprobs = f'{{"content":[{entry}],"refusal":null}}' if entry else "null"
        return (
            f'{{"index":{self._index},"delta":{to_json(content)},"logprobs":{logprobs},'
            f'"finish_reason":{to_json(finish)}{stop_reason(stop)}{self._ids_text(ids)}}}'
        )


def _content(part: Part) -> dict[str, Any]:
    """Return a part as the ``delta`` of a chunk."""
    match part:
        case Text(text):
            return {"content": text}
        case Thinking(text):
            return {"reasoning_content": text, "reasoning": text}  # DeepSeek's name, and newer vLLM's
        case CallStart(call, name):
            begun = {"index": call, "id": new_call_id(), "type": "function"}
            return {"tool_calls": [begun | {"function": {"name": name, "arguments": ""}}]}
        case CallArguments(call, text):
            return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
