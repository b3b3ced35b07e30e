"""Bounds of the work that a grammar may cause: to compile it, and in each step."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits


@cache
def parser_limits() -> LLParserLimits:
    """Return the bounds of a parser; a grammar beyond them is refused, or ends its request."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
