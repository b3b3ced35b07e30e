"""Tools of a chat's body: the functions that the model may call, and whether it must.

A call that is required, or whose arguments must be valid, is held to that by a grammar; see
:mod:`wisp_runtime.server.answers.tools`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from wisp_runtime.server.answers.tools.format import Tool
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.parsing.hints.foreign_tools import (
    refuse_flat_choice,
    refuse_foreign_chat_tool,
    refuse_foreign_openai_choice,
)
from wisp_runtime.server.parsing.strict_model import StrictModel

MAX_TOOLS = 256
MAX_NAME_CHARS = 128
MAX_GIVEN_NAME_CHARS = 65_536
SHOWN_NAMES = 20  # of the tools that there are, in an error

FUNCTION_CHOICE = '{"type": "function", "function": {"name": "…"}}'
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[A-Za-z0-9_.:/-]+$")]
GivenName = Annotated[str, Field(min_length=1, max_length=MAX_GIVEN_NAME_CHARS)]
"""Name in a call of the history: as a model wrote it, whatever it was."""


class FunctionField(StrictModel):
    """A function as OpenAI describes it."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(StrictModel):
    """An entry of ``tools``."""

    type: Literal["function"]
    function: FunctionField

    @model_validator(mode="before")
    @classmethod
    def _is_of_chat(cls, value: Any) -> Any:
        refuse_foreign_chat_tool(value)
        return value


class NamedFunction(StrictModel):
    """A function that is only named."""

    name: Name


class NamedTool(StrictModel):
    """A ``tool_choice`` that names the function to call."""

    type: Literal["function"]
    function: NamedFunction

    @model_validator(mode="before")
    @classmethod
    def _is_of_chat(cls, value: Any) -> Any:
        refuse_foreign_openai_choice(value, FUNCTION_CHOICE)
        refuse_flat_choice(value, FUNCTION_CHOICE)
        return value


class AllowedTools(StrictModel):
    """Tools among which the model may choose now."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(StrictModel):
    """A ``tool_choice`` that allows some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(value: Any) -> str:
    """Return the tag of a ``tool_choice``, in parentheses: an error is of one kind, and does not show it."""
    if isinstance(value, AllowedToolsChoice):  # checked before, as the fields of /tokenize are
        return "(allowed)"
    if not isinstance(value, dict):
        return "(mode)" if isinstance(value, str) else "(named)"
    return "(allowed)" if value.get("type") == "allowed_tools" else "(named)"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(mode)")]
    | Annotated[NamedTool, Tag("(named)")]
    | Annotated[AllowedToolsChoice, Tag("(allowed)")],
    Discriminator(_kind_of_choice),
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request.

    Attributes:
        described: tools as the template is given them, OpenAI's JSON; empty: the model may call none.
        callable: tools that an answer may call.
        is_required: whether the answer must be a call.
        is_parallel: whether it may be several; a function that is named is called once.
    """

    described: tuple[dict[str, Any], ...] = ()
    callable: tuple[Tool, ...] = ()
    is_required: bool = False
    is_parallel: bool = True


def tool_use(
    tools: Sequence[ToolField] | None, choice: ToolChoice | None, *, is_parallel: bool | None
) -> ToolUse:
    """Return what a request's fields ask for.

    Raises:
        ApiError: a name is there twice, or a choice names no tool.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("'tool_choice' asks for a call, but there are no 'tools'.", "tool_choice")
        return ToolUse()
    known = {tool.function.name: _tool_of(tool.function) for tool in tools}
    if len(known) < len(tools):
        raise bad_request("Two of the 'tools' have one name; each needs its own.", "tools")
    if choice == "none":
        return ToolUse()
    names, is_required = _chosen(choice)
    for name in names:
        if name not in known:
            there = ", ".join(list(known)[:SHOWN_NAMES])
            raise bad_request(
                f"'tool_choice' names {name!r}, which is none of the tools: {there}.", "tool_choice"
            )
    return ToolUse(
        described=tuple(tool.model_dump(exclude_none=True) for tool in tools),
        callable=tuple(known[name] for name in names or known),
        is_required=is_required,
        is_parallel=is_parallel is not False and not isinstance(choice, NamedTool),
    )


def _chosen(choice: ToolChoice | None) -> tuple[list[str], bool]:
    """Return the names that a choice allows (none: all of them) and whether one must be called."""
    match choice:
        case NamedTool():
            return [choice.function.name], True
        case AllowedToolsChoice(allowed_tools=allowed):
            return [tool.function.name for tool in allowed.tools], allowed.mode == "required"
        case _:
            return [], choice == "required"


def _tool_of(function: FunctionField) -> Tool:
    return Tool(function.name, function.parameters or {}, function.strict is True)
