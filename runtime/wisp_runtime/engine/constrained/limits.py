"""Bounds of the work that a grammar may cause: to compile it, and in each step.

The bounds of llguidance count work, not time; a text within :data:`MAX_GRAMMAR_BYTES` and
:data:`MAX_PROPERTIES` compiles in half a second of one core at most.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from wisp_runtime.engine.constrained.grammar import reason

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

MAX_GRAMMAR_BYTES = 1 << 17
MAX_PROPERTIES = 2500  # of all objects of a schema together: the time grows with the square
_PROBE = b'{"'
"""First bytes of many answers: an object of too many properties fails behind them."""


@cache
def parser_limits() -> LLParserLimits:
    """Return the bounds of a parser; a grammar beyond them is refused, or ends its request."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def why_refused(text: str) -> str:
    """Compile a grammar for a model of bytes and take its first steps; return why it fails, or an empty text.

    Special tokens are not known here: a grammar that names some is left to the engine.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(_bytes(), text, log_level=0, limits=parser_limits())
    for byte in _PROBE:
        if matcher.is_error():
            break
        matcher.compute_bitmask()
        if not matcher.try_consume_tokens([byte]):
            break
    why = reason(matcher.get_error()) if matcher.is_error() else ""
    if why == "NoExtensionBias":
        return "no text ever follows it to an end"
    return "" if "unknown special token" in why else why


@cache
def _bytes() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
