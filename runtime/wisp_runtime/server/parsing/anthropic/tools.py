"""Tools of Anthropic's Messages API. Those that run on Anthropic's servers are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator, model_validator

from wisp_runtime.server.parsing.anthropic.blocks import MarkedModel
from wisp_runtime.server.parsing.hints.foreign_tools import refuse_foreign_message_tool
from wisp_runtime.server.parsing.strict_model import Off, StrictModel, by_type
from wisp_runtime.server.parsing.tools import Name

MAX_EXAMPLES = 64
SHOWN_CHARS = 100  # of a value that an error repeats


class ToolDefinition(MarkedModel):
    """A tool that the client runs."""

    name: Name
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    input_examples: Annotated[list[dict[str, Any]], Field(max_length=MAX_EXAMPLES)] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Off | None = None
    eager_input_streaming: bool | None = None  # inputs are streamed as they come, and complete at their end

    @model_validator(mode="before")
    @classmethod
    def _is_run_by_the_client(cls, value: Any) -> Any:
        refuse_foreign_message_tool(value)
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise ValueError(
                f"Tools of type {kind[:SHOWN_CHARS]!r} are Anthropic's own and are not served here. "
                "Describe it as a tool with 'name', 'description' and 'input_schema'."
            )
        return value

    @field_validator("defer_loading", mode="before")
    @classmethod
    def _is_loaded(cls, value: Any) -> Any:
        if value is True:
            raise ValueError("'defer_loading' is not supported here: there is no tool search. Leave it out.")
        return value


class AutoTool(StrictModel):
    """A ``tool_choice`` that leaves the tool to the model, and whether it calls one."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyTool(StrictModel):
    """A ``tool_choice`` that leaves the tool to the model, which must call one."""

    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class NoTool(StrictModel):
    """A ``tool_choice`` that allows no tool."""

    type: Literal["none"]


class ChosenTool(StrictModel):
    """A ``tool_choice`` that names the tool to use."""

    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


ToolChoice = Annotated[
    Annotated[AutoTool, Tag("(auto)")]
    | Annotated[AnyTool, Tag("(any)")]
    | Annotated[NoTool, Tag("(none)")]
    | Annotated[ChosenTool, Tag("(tool)")],
    by_type("auto", "any", "none", "tool"),
]
