"""Content blocks of Anthropic's messages.

Blocks that only Anthropic's servers make or only other models read are refused by name. ``cache_control`` is
accepted everywhere and ignored: prefixes are cached without being marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from wisp_runtime.server.parsing.chat_request import MAX_PARTS
from wisp_runtime.server.parsing.strict_model import StrictModel, by_type
from wisp_runtime.server.parsing.tools import GivenName

MAX_ID_CHARS = 256

CallId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


class MarkedModel(StrictModel):
    """An object that may carry a mark behind which Anthropic's servers cache the prompt."""

    cache_control: dict[str, Any] | None = None


class TextBlock(MarkedModel):
    """Text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=MAX_PARTS)] | None = None  # of a former answer


class ThinkingBlock(StrictModel):
    """Thinking of a former answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(StrictModel):
    """Thinking that only Anthropic's models can read; it is left out."""

    type: Literal["redacted_thinking"]
    data: str


class Caller(StrictModel):
    """Origin of a call: the model itself, not a program that it wrote."""

    type: Literal["direct"]


class ToolUseBlock(MarkedModel):
    """A call of a former answer."""

    type: Literal["tool_use"]
    id: CallId
    name: GivenName
    input: dict[str, Any]
    caller: Caller | None = None
    toolset_name: None = None  # of Anthropic's own tools


def _only(*kinds: str) -> BeforeValidator:
    """Refuse a block of another type before its fields are checked."""

    def readable(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise ValueError(
                f"A block of type {kind[:MAX_ID_CHARS]!r} is not read here. "
                f"Models of this server read text; send blocks of type {', '.join(kinds)}."
            )
        return value

    return BeforeValidator(readable)


def _form(value: Any) -> str:
    """Return the tag of a content: a string stands for a list of one text block."""
    return "(string)" if isinstance(value, str) else "(blocks)"


TextBlocks = Annotated[
    list[Annotated[TextBlock, _only("text")]], Field(max_length=MAX_PARTS), Tag("(blocks)")
]
Texts = Annotated[Annotated[str, Tag("(string)")] | TextBlocks, Discriminator(_form)]


class ToolResultBlock(MarkedModel):
    """Result of a call."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Texts | None = None
    is_error: bool | None = None
    toolset_name: None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
_KINDS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
ContentBlock = Annotated[
    Annotated[
        Annotated[TextBlock, Tag("(text)")]
        | Annotated[ThinkingBlock, Tag("(thinking)")]
        | Annotated[RedactedThinkingBlock, Tag("(redacted_thinking)")]
        | Annotated[ToolUseBlock, Tag("(tool_use)")]
        | Annotated[ToolResultBlock, Tag("(tool_result)")],
        by_type(*_KINDS),
    ],
    _only(*_KINDS),
]
Content = Annotated[
    Annotated[str, Tag("(string)")]
    | Annotated[list[ContentBlock], Field(max_length=MAX_PARTS), Tag("(blocks)")],
    Discriminator(_form),
]


def texts_of(content: str | Sequence[TextBlock]) -> list[str]:
    """Return the texts of a content."""
    return [content] if isinstance(content, str) else [block.text for block in content]
