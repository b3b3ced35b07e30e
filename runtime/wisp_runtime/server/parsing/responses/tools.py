"""Tools of a Responses body: functions, and the choice among them, as chat's fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.parsing.hints.foreign_tools import (
    refuse_foreign_openai_choice,
    refuse_foreign_response_tool,
    refuse_nested_choice,
)
from wisp_runtime.server.parsing.strict_model import Off, StrictModel
from wisp_runtime.server.parsing.tools import MAX_NAME_CHARS, MAX_TOOLS, Name

FUNCTION_CHOICE = '{"type": "function", "name": "…"}'
_RUN_IT = "This server runs no tools: declare a function, and run it in the client."
REMEDIES = {
    "custom": "Declare a function with one string parameter.",
    "namespace": "Declare functions in it.",
    "web_search": f'{_RUN_IT} In Codex: web_search = "disabled" in config.toml.',
    "apply_patch": "Declare a function with the patch as a string parameter, and apply it in the client.",
    "mcp": "This server calls no other: declare its tools as functions, and call it in the client.",
}


class FunctionTool(StrictModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    # Newer fields, whose other values ask for what is not done here.
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Off | None = None
    output_schema: None = None

    @model_validator(mode="before")
    @classmethod
    def _is_of_responses(cls, value: Any) -> Any:
        refuse_foreign_response_tool(value)
        return value

    def for_chat(self) -> dict[str, Any]:
        """Return the tool as a chat's body has it."""
        names = ("name", "description", "parameters", "strict")
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {"type": "function", "function": fields}

    def to_dict(self) -> dict[str, Any]:
        """Return the tool as a response shows it."""
        names = ("type", "name", "description", "parameters", "strict")
        return {name: getattr(self, name) for name in names}


class NamespaceTool(StrictModel):
    """Functions under a common name, as Codex declares them. The model knows each by both names."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Annotated[list[FunctionTool], Field(min_length=1, max_length=MAX_TOOLS)]

    def to_dict(self) -> dict[str, Any]:
        """Return the tools as a response shows them."""
        tools = [tool.to_dict() for tool in self.tools]
        return {"type": self.type, "name": self.name, "description": self.description, "tools": tools}


def _kind_of_tool(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "(namespace)" if kind == "namespace" else "(function)"


ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("(function)")] | Annotated[NamespaceTool, Tag("(namespace)")],
    Discriminator(_kind_of_tool),
]


def name_in_chat(name: str, namespace: str | None) -> str:
    """Return the name by which the model knows a function."""
    return f"{namespace}__{name}" if namespace else name


def tools_in_chat(tools: Sequence[ResponsesTool]) -> list[dict[str, Any]]:
    """Return tools as a chat's body has them."""
    functions: list[dict[str, Any]] = []
    for tool in tools:
        if isinstance(tool, FunctionTool):
            functions.append(tool.for_chat())
            continue
        for function in tool.tools:
            described = function.for_chat()
            described["function"]["name"] = name_in_chat(function.name, tool.name)
            functions.append(described)
    return functions


def namespaces_of(tools: Sequence[ResponsesTool]) -> dict[str, tuple[str, str]]:
    """Return name and namespace of each function that has one, by the name that the model knows."""
    return {
        name_in_chat(function.name, tool.name): (function.name, tool.name)
        for tool in tools
        if isinstance(tool, NamespaceTool)
        for function in tool.tools
    }


class FunctionChoice(StrictModel):
    """A ``tool_choice`` that names the function to call."""

    type: Literal["function"]
    name: Name

    def for_chat(self) -> dict[str, Any]:
        """Return the choice as a chat's body has it."""
        return {"type": "function", "function": {"name": self.name}}


class AllowedChoice(StrictModel):
    """A ``tool_choice`` that allows some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS)]

    def for_chat(self) -> dict[str, Any]:
        """Return the choice as a chat's body has it."""
        tools = [tool.for_chat() for tool in self.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}


def _kind_of_choice(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(value, dict) and kind is None:
        return "(mode)"
    return "(allowed)" if kind == "allowed_tools" else "(function)"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(mode)")]
    | Annotated[FunctionChoice, Tag("(function)")]
    | Annotated[AllowedChoice, Tag("(allowed)")],
    Discriminator(_kind_of_choice),
]


def check_tools(value: Any) -> Any:
    """Return the tools, if they are functions.

    Raises:
        ApiError: 400, naming a tool that is none, and the remedy.
    """
    if isinstance(value, list) and len(value) <= MAX_TOOLS:
        for index, tool in enumerate(value):
            _check_tool(tool, f"tools.{index}")
    return value


def _check_tool(tool: Any, place: str) -> None:
    nested = tool.get("tools") if isinstance(tool, dict) and tool.get("type") == "namespace" else None
    if not isinstance(nested, list):
        _check_kind(tool, place)
        return
    for index, function in enumerate(nested[:MAX_TOOLS]):
        _check_kind(function, f"{place}.tools.{index}")


def check_choice(value: Any) -> Any:
    """Return the choice, if it chooses functions.

    Raises:
        ApiError: 400, naming another kind of tool, and the remedy.
        ValueError: it is written as for another API.
    """
    refuse_foreign_openai_choice(value, FUNCTION_CHOICE)
    refuse_nested_choice(value, FUNCTION_CHOICE)
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        tools = value.get("tools")
        for index, tool in enumerate(tools if isinstance(tools, list) else ()):
            _check_kind(tool, f"tool_choice.tools.{index}")
    elif isinstance(value, dict):
        _check_kind(value, "tool_choice")
    return value


def _check_kind(tool: Any, place: str) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        refusal = f"Tools of type {kind[:MAX_NAME_CHARS]!r} are not supported here."
        raise bad_request(
            f"{refusal} {REMEDIES.get(kind, _RUN_IT)}", f"{place}.type", "unsupported_parameter"
        )
