"""Render a model's chat template: messages in, the prompt's text out.

Templates are Jinja2 programs that come with the model, so they run in Jinja's sandbox, with the names and
habits Hugging Face's ``transformers`` gave them. The counts of loops and characters here only give an early
refusal in words; the bounds that hold are the kernel's, on the process that runs this module
(:mod:`.template_process`). The server itself never imports it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wisp_runtime.server.text.template_messages import MAX_OUTPUT_CHARS, TemplateFailed

MAX_LOOP_ITEMS = 1_000_000  # sum over all range() calls of one rendering
# Exceptions of a template that does not suit the messages, or runs away.
_FAILURES = (
    *(jinja2.TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError),
    *(RecursionError, SyntaxError),
)


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks an assistant's own text for training; here, its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class CompiledTemplate:
    """A compiled template.

    Args:
        source: the Jinja2 text.
        special_tokens: ``bos_token``, ``eos_token`` and the like, as the template may name them.

    Raises:
        TemplateFailed: the text is no valid template.
        MemoryError: a constant of it is too large.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self._special_tokens = special_tokens
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except _FAILURES as error:
            raise TemplateFailed(f"it is no valid Jinja2: {_reason(error)}") from error

    def render(self, messages: list[dict[str, Any]], names: Mapping[str, Any] | None = None) -> str:
        """Return the prompt for ``messages``, up to the start of the assistant's message.

        Args:
            messages: messages of the OpenAI API, contents as plain text.
            names: further names for the template (``enable_thinking``).

        Raises:
            TemplateFailed: the template refused, failed, or ran out of bounds.
            MemoryError: the process may not have as much memory as it needs.
        """
        values = {"tools": None, "documents": None, "add_generation_prompt": True, **self._special_tokens}
        values |= dict(names or {}) | {"messages": messages, "range": _bounded_range(MAX_LOOP_ITEMS)}
        try:
            return _bounded_join(self._template.generate(values))
        except _FAILURES as error:
            raise TemplateFailed(_reason(error)) from error


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change prompts.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _bounded_range(budget: int) -> Callable[..., range]:
    def bounded(*arguments: int) -> range:
        nonlocal budget
        numbers = range(*arguments)
        budget -= len(numbers)
        if budget < 0:
            raise jinja2.TemplateError(f"it loops over more than {MAX_LOOP_ITEMS} numbers")
        return numbers

    return bounded


def _bounded_join(parts: Iterator[str]) -> str:
    kept, size = [], 0
    for part in parts:
        size += len(part)
        if size > MAX_OUTPUT_CHARS:
            raise jinja2.TemplateError(f"it writes more than {MAX_OUTPUT_CHARS} characters")
        kept.append(part)
    return "".join(kept)
