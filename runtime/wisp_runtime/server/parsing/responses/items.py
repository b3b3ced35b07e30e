"""Items of a conversation in the Responses API, as requests bring them and as the store keeps them."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator

from wisp_runtime.server.answers.parts import MAX_NAME_CHARS
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.parsing.chat_request import MAX_PARTS, RefusalPart
from wisp_runtime.server.parsing.strict_model import StrictModel

MAX_ITEMS = 4096
MAX_ID_CHARS = 256
THINKING_PREFIX = "wisp."  # of encrypted_content: thinking is no secret here, so it is only encoded
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
READ_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")

Identity = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]
Status = Literal["in_progress", "completed", "incomplete"]


def new_id(prefix: str) -> str:
    """Return an id for an item."""
    return f"{prefix}_{uuid.uuid4().hex}"


def encoded_thinking(text: str) -> str:
    """Return thinking as ``encrypted_content``: clients that keep their history send it back."""
    return THINKING_PREFIX + base64.b64encode(text.encode()).decode()


class ContentPart(StrictModel):
    """A text part of a content, as the OpenAPI document describes it."""

    model_config = ConfigDict(extra="allow")  # logprobs, annotations: as the server wrote them
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


PartsField = Annotated[list[ContentPart | RefusalPart], Field(max_length=MAX_PARTS)]


class Item(StrictModel):
    """Fields that every item may have."""

    id: Identity | None = None
    status: Status | None = None
    created_by: str | None = None


class MessageItem(Item):
    """A message of any role; its content is kept as texts."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: list[str]
    phase: Literal["commentary", "final_answer"] | None = None

    @field_validator("content", mode="before", json_schema_input_type=str | PartsField)
    @classmethod
    def _content_as_texts(cls, value: Any) -> Any:
        return texts_of(value, "A message's content")

    def to_dict(self) -> dict[str, Any]:
        """Return the item as the store keeps it."""
        parts: list[dict[str, Any]]
        if self.role == "assistant":
            parts = [{"type": "output_text", "text": text, "annotations": []} for text in self.content]
        else:
            parts = _input_parts(self.content)
        return {
            "id": self.id or new_id("msg"),
            "type": "message",
            "status": self.status or "completed",
            "role": self.role,
            "content": parts,
            **({"phase": self.phase} if self.phase else {}),
        }


class _CallFields(Item):
    """Fields of calls and their outputs that newer clients send back; only their defaults mean nothing."""

    call_id: Identity
    caller: dict[str, Any] | None = None
    namespace: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None

    @field_validator("caller")
    @classmethod
    def _only_direct(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value != {"type": "direct"}:
            raise ValueError("Calls of programs are not supported: 'caller' may only be of type 'direct'.")
        return value

    def _call_fields(self) -> dict[str, Any]:
        """Return the fields of both, as they were sent."""
        names = ("namespace", "caller", "created_by")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class FunctionCallItem(_CallFields):
    """A call that the model made."""

    type: Literal["function_call"]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """Return the item as the store keeps it."""
        return {
            "id": self.id or new_id("fc"),
            "type": "function_call",
            "status": self.status or "completed",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
            **self._call_fields(),
        }


class FunctionOutputItem(_CallFields):
    """The result of a call."""

    type: Literal["function_call_output"]
    output: str | list[str]
    name: str | None = None

    @field_validator("output", mode="before", json_schema_input_type=str | PartsField)
    @classmethod
    def _output_as_texts(cls, value: Any) -> Any:
        return value if isinstance(value, str) else texts_of(value, "The output of a call")

    @property
    def text(self) -> str:
        """The output as one text."""
        return self.output if isinstance(self.output, str) else "\n".join(self.output)

    def to_dict(self) -> dict[str, Any]:
        """Return the item as the store keeps it."""
        return {
            "id": self.id or new_id("fco"),
            "type": "function_call_output",
            "status": self.status or "completed",
            "call_id": self.call_id,
            "output": self.output if isinstance(self.output, str) else _input_parts(self.output),
            **({} if self.name is None else {"name": self.name}),
            **self._call_fields(),
        }


class ReasoningItem(Item):
    """Thinking of the model: its content, else what was encoded, else its summary."""

    type: Literal["reasoning"]
    summary: list[str] = Field(default_factory=list)
    content: list[str] | None = None
    encrypted_content: str | None = None

    @field_validator("summary", "content", mode="before", json_schema_input_type=str | PartsField | None)
    @classmethod
    def _parts_as_texts(cls, value: Any) -> Any:
        return value if value is None else texts_of(value, "Reasoning")

    @property
    def text(self) -> str:
        """The thinking, maybe none.

        Raises:
            ValueError: it is encrypted, and not by this server.
        """
        if texts := (self.content or self.summary):
            return "\n".join(texts)
        return _decoded_thinking(self.encrypted_content) if self.encrypted_content else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the item as the store keeps it."""
        return {
            "id": self.id or new_id("rs"),
            "type": "reasoning",
            "status": self.status or "completed",
            "summary": [{"type": "summary_text", "text": text} for text in self.summary],
            "content": [{"type": "reasoning_text", "text": text} for text in self.content or ()],
            **({"encrypted_content": self.encrypted_content} if self.encrypted_content else {}),
        }


class ItemReference(StrictModel):
    """An item that the store has."""

    type: Literal["item_reference"] | None = None
    id: Identity


ContentItem = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem


def _kind_of_item(value: Any) -> str:
    """Return an item's tag, in parentheses: an error is of one kind, and does not show it."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind is None and isinstance(value, dict):
        kind = "message" if "role" in value else "item_reference"
    return f"({kind or 'item_reference'})"


InputItem = Annotated[
    Annotated[MessageItem, Tag("(message)")]
    | Annotated[FunctionCallItem, Tag("(function_call)")]
    | Annotated[FunctionOutputItem, Tag("(function_call_output)")]
    | Annotated[ReasoningItem, Tag("(reasoning)")]
    | Annotated[ItemReference, Tag("(item_reference)")],
    Discriminator(_kind_of_item),
]


def input_items(value: Any) -> Any:
    """Return ``input`` as a list of items that have types this server reads: a text is a user's message.

    Raises:
        ApiError: 400; an item is of a type that is not read here.
        ValueError: it is no list of items.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ValueError("'input' must be a string, or a list of at least one item.")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"'input' has {len(value)} items; at most {MAX_ITEMS} are allowed.")
    for index, item in enumerate(value):
        _check_item(item, index)
    return value


def _check_item(item: Any, index: int) -> None:
    if not isinstance(item, dict):
        raise ValueError(f"Item {index} of 'input' is no object.")
    kind = item.get("type")
    if kind is not None and kind not in ITEM_TYPES:
        known = ", ".join(ITEM_TYPES)
        message = f"Items of type {str(kind)[:40]!r} are not supported here; there are {known}."
        raise bad_request(message, f"input.{index}.type", "unsupported_parameter")


def _input_parts(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "input_text", "text": text} for text in texts]


def texts_of(value: Any, owner: str) -> Sequence[str]:
    """Return the texts of a content: of one string, or of a list of text parts.

    Raises:
        ValueError: a part is no text.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError(f"{owner} must be a string or a list of text parts.")
    if len(value) > MAX_PARTS:
        raise ValueError(f"{owner} has {len(value)} parts; at most {MAX_PARTS} are allowed.")
    return [_text_of(part, index) for index, part in enumerate(value)]


def _text_of(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "refusal" and kind not in READ_PARTS:
        shown = f"of type {str(kind)[:40]!r}" if kind else "without a type"
        raise ValueError(
            f"Content part {index} is {shown}; this model reads text alone: send 'input_text' parts."
        )
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise ValueError(f"Content part {index} has no text.")
    return text


def _decoded_thinking(content: str) -> str:
    try:
        if not content.startswith(THINKING_PREFIX):
            raise ValueError
        return base64.b64decode(content[len(THINKING_PREFIX) :], validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise ValueError(
            "'encrypted_content' is of another server and cannot be read here: leave the item out."
        ) from error
