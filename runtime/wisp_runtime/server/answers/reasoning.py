"""Families of thinking markers, and the choice of one by a model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.thinking import ThinkingParser


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Markers of thinking.

    Attributes:
        name: name by which ``--reasoning-parser`` selects it.
        opening: marker in front of thinking.
        closing: marker behind it.
        markers: texts of special tokens that the parser needs to see. Not shown where it is not used.
        signs: texts in the source of a chat template that show that its model writes these markers.
        prompt_endings: endings of a prompt within which thinking has begun, whitespace aside.
        may_reopen: whether thinking may begin behind text.
        channels: format of tool calls whose parser splits this thinking too; empty: there is none.
        efforts: efforts that its models know, the least first; empty: those that their templates read.
    """

    name: str
    opening: str
    closing: str
    markers: tuple[str, ...]
    signs: tuple[str, ...]
    prompt_endings: tuple[str, ...]
    may_reopen: bool = False
    channels: str = ""
    efforts: tuple[str, ...] = ()

    def is_used_by(self, template: str) -> bool:
        """Return whether the source of a chat template names these markers."""
        return any(sign in template for sign in self.signs)

    def starts_open(self, prompt: str, begun: str = "") -> bool:
        """Return whether an answer to the rendered ``prompt`` begins within thinking (DeepSeek-R1).

        Args:
            begun: text of the answer that ``prompt`` ends with, if a message is continued.
        """
        if self.opening in begun or self.closing in begun:
            return begun.rfind(self.opening) > begun.rfind(self.closing)
        return prompt.rstrip().endswith(self.prompt_endings)

    def is_closed_by(self, prompt: str, begun: str = "") -> bool:
        """Return whether the rendered ``prompt`` has closed thinking (``enable_thinking: false``)."""
        if self.opening in begun or self.closing in begun:
            return begun.rfind(self.closing) > begun.rfind(self.opening)
        return prompt.rstrip().endswith(self.closing)

    def parser(
        self, prompt: str, begun: str = "", call_openings: Sequence[str] = ()
    ) -> ThinkingParser | None:
        """Return a parser of one answer to the rendered ``prompt``; None if it has closed thinking.

        Args:
            begun: text of the answer that ``prompt`` ends with, if a message is continued.
            call_openings: texts of a tool call in front of which thinking ends.
        """
        if self.is_closed_by(prompt, begun):
            return None
        return ThinkingParser(
            self.opening,
            self.closing,
            starts_open=self.starts_open(prompt, begun),
            may_reopen=self.may_reopen,
            call_openings=call_openings,
        )


def _tags(name: str, opening: str, closing: str, *, may_reopen: bool = False) -> ReasoningFormat:
    pair = (opening, closing)
    return ReasoningFormat(
        name, *pair, markers=pair, signs=pair, prompt_endings=(opening,), may_reopen=may_reopen
    )


_ANALYSIS = "<|channel|>analysis<|message|>"

# Read from templates of their models: Qwen3, DeepSeek-R1 and -V3.1, GLM-4.6, SmolLM3, Granite 3.3, Nemotron
# Nano 2 (think); Seed-OSS; Gemma 4; Command R7B; gpt-oss (harmony); Magistral's from its tokenizer.
FORMATS = (
    ReasoningFormat(
        name="harmony",
        opening=_ANALYSIS,
        closing="<|end|>",
        markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
        signs=("<|channel|>analysis",),
        prompt_endings=(_ANALYSIS,),
        may_reopen=True,
        channels="harmony",
        efforts=("low", "medium", "high"),
    ),
    ReasoningFormat(
        name="seed_oss",
        opening="<seed:think>",
        closing="</seed:think>",
        markers=("<seed:think>", "</seed:think>"),
        signs=("<seed:think>",),
        prompt_endings=("<seed:think>", "<seed:think><seed:cot_budget_reflect>"),
    ),
    ReasoningFormat(
        name="gemma4",
        opening="<|channel>thought\n",
        closing="<channel|>",
        markers=("<|channel>", "<channel|>"),
        signs=("<|channel>",),
        prompt_endings=("<|channel>thought",),
        may_reopen=True,
    ),
    _tags("mistral", "[THINK]", "[/THINK]", may_reopen=True),
    _tags("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    _tags("think", "<think>", "</think>"),
)
AUTO, NONE = "auto", "none"
NAMES = (AUTO, NONE, *(format.name for format in FORMATS))


def format_of(template: str | None, wanted: str = AUTO) -> ReasoningFormat | None:
    """Return the markers that a model writes; None if it does not think.

    Args:
        template: source of the chat template; None for a base model.
        wanted: name of a format, ``auto`` (the template shows it) or ``none``.

    Raises:
        ConfigError: no format has that name.
    """
    if wanted not in NAMES:
        raise ConfigError(f"no reasoning parser is called {wanted!r}; use one of: {', '.join(NAMES)}.")
    if wanted == AUTO:
        return next((format for format in FORMATS if template and format.is_used_by(template)), None)
    return next((format for format in FORMATS if format.name == wanted), None)
