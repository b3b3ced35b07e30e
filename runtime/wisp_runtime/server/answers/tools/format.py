"""Interface of a tool markup: what a file of this package brings, and what the server asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from wisp_runtime.server.answers.parts import Part

if TYPE_CHECKING:
    from wisp_runtime.server.answers.tools.grammars.lark import LarkRules


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: its name.
        parameters: JSON schema of its arguments; ``{}``: it has none.
        is_strict: whether arguments must be valid by the schema.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_strict: bool = False


class ToolParser(Protocol):
    """Parser of one answer: text in, parts out. The parts do not depend on how the text was divided.

    Attributes:
        is_in_call: whether the text that comes next is within a call, whose arguments may hold any marker.
        held_chars: characters at the end of the text that may yet become text, or markup.
    """

    @property
    def is_in_call(self) -> bool: ...

    @property
    def held_chars(self) -> int: ...

    def push(self, text: str) -> Sequence[Part]:
        """Add text; return the parts that are certain by now: Text, CallStart and CallArguments.

        A call's arguments are handed on as they come, as soon as its name is known; they are JSON if the
        model wrote JSON. White space between text and a call belongs to neither.
        """
        ...

    def interrupt(self) -> Sequence[Part]:
        """Return the rest where thinking begins: markup that is under way is text. Not within a call."""
        ...

    def finish(self) -> Sequence[Part]:
        """Return the rest, once: markup that was begun and cannot be a call is text, as it was written.

        A call that has started stays one: if the answer ends inside it, its arguments are cut short, or
        missing.
        """
        ...


class ToolFormat(Protocol):
    """Markup of a family of models.

    Attributes:
        name: name by which ``--tool-parser`` selects it.
        markers: texts of special tokens that the parser needs to see (others are never shown).
        splits_thinking: whether the parser splits thinking too; it then reads every answer, also to requests
            without tools, and no reasoning parser comes before it. Such a format is a :class:`Channels`.
        ends: texts of special tokens that end an answer, whether or not the model's files say so.
    """

    name: str
    markers: tuple[str, ...]
    splits_thinking: bool
    ends: tuple[str, ...]

    def parser(self, tools: Sequence[Tool], /) -> ToolParser:
        """Return a parser for one answer; the tools' schemas type values where the markup has no types."""
        ...

    def calls(self, rules: LarkRules, tools: Sequence[Tool], /, *, is_parallel: bool) -> str:
        """Return the symbols of an answer that is one call, or with ``is_parallel`` one or more."""
        ...

    def answer(self, rules: LarkRules, tools: Sequence[Tool], /, *, is_parallel: bool) -> str:
        """Return the symbols of an answer with text, calls, or both.

        All that the parser would find to be a call is one of ``tools`` with arguments by their schemas.
        """
        ...


@runtime_checkable
class Channels(ToolFormat, Protocol):
    """Markup in which thinking, text and calls are messages in channels."""

    def before_text(self, rules: LarkRules, /) -> str:
        """Return the symbols of all that comes before an answer's text, if it has no calls."""
        ...
