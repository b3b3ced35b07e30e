"""Formats of tool calls by name, and the choice of one from a model's chat template."""

from __future__ import annotations

from collections.abc import Mapping

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.tools.format import ToolFormat
from wisp_runtime.server.answers.tools.harmony import Harmony
from wisp_runtime.server.answers.tools.hermes import Hermes
from wisp_runtime.server.answers.tools.llama3_json import Llama3Json
from wisp_runtime.server.answers.tools.mistral import Mistral
from wisp_runtime.server.answers.tools.pythonic import Pythonic
from wisp_runtime.server.answers.tools.qwen3_coder import Qwen3Coder

FORMATS: Mapping[str, ToolFormat] = {
    tool_format.name: tool_format
    for tool_format in (Harmony(), Mistral(), Qwen3Coder(), Hermes(), Llama3Json(), Pythonic())
}
"""Formats by name, in the order in which a template is asked for them."""


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
    return next((known for known in FORMATS.values() if template and known.is_used_by(template)), None)


def _named(name: str) -> ToolFormat:
    if name not in FORMATS:
        raise ConfigError(
            f"--tool-parser {name} is no format of tool calls. Name one of auto, none, {', '.join(FORMATS)}."
        )
    return FORMATS[name]
