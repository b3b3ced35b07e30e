"""Formats of tool calls by name, and the choice of one from a model's chat template.

A format is imported when it is chosen: a model writes one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.tools.format import ToolFormat


@dataclass(frozen=True, slots=True)
class Family:
    """Templates of the models that write a format.

    Attributes:
        class_name: class of the format, in the module of its name.
        shows: texts that each of the templates has.
        lacks: texts that none of them has.
    """

    class_name: str
    shows: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    def is_used_by(self, template: str) -> bool:
        """Return whether the source of a chat template shows that its model writes this markup."""
        return all(text in template for text in self.shows) and not any(
            text in template for text in self.lacks
        )


FAMILIES = {
    "harmony": Family("Harmony", ("<|channel|>", "<|message|>")),
    "mistral": Family("Mistral", ("[TOOL_CALLS]",)),
    "qwen3_coder": Family("Qwen3Coder", ("<tool_call>", "<function=", "<parameter=")),
    # JSON between the tags, not XML as Qwen3-Coder and GLM have it.
    "hermes": Family("Hermes", ("<tool_call>",), lacks=("<function=", "<arg_key>")),
    "llama3_json": Family("Llama3Json", ('Respond in the format {"name": function name, "parameters"',)),
    "pythonic": Family("Pythonic", ("[func_name1(param",)),
}
"""Families by the name of their format, in the order in which a template is compared with them."""


class _Formats(Mapping[str, ToolFormat]):
    """Formats by name, each made when it is first looked up."""

    def __init__(self) -> None:
        self._made: dict[str, ToolFormat] = {}

    def __getitem__(self, name: str) -> ToolFormat:
        family = FAMILIES[name]
        if name not in self._made:
            module = importlib.import_module(f"{__package__}.{name}")
            self._made[name] = getattr(module, family.class_name)()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(FAMILIES)

    def __len__(self) -> int:
        return len(FAMILIES)


FORMATS: Mapping[str, ToolFormat] = _Formats()


def format_of(template: str | None, wanted: str = "auto") -> ToolFormat | None:
    """Return the format in which a model writes calls; None for none.

    Args:
        template: source of the model's chat template; None if it has none.
        wanted: ``auto``: as the template shows; ``none``; or a name.

    Raises:
        ConfigError: no format has that name.
    """
    if wanted == "none":
        return None
    if wanted != "auto":
        return _named(wanted)
    named = (name for name, family in FAMILIES.items() if template and family.is_used_by(template))
    name = next(named, None)
    return FORMATS[name] if name is not None else None


def _named(name: str) -> ToolFormat:
    if name not in FAMILIES:
        raise ConfigError(
            f"--tool-parser {name} is no format of tool calls. Name one of auto, none, {', '.join(FAMILIES)}."
        )
    return FORMATS[name]
