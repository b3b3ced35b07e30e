"""Tokens of a marker, wherever it stands: neighbouring text may be a part of its first and last token."""

from __future__ import annotations

from itertools import product

from wisp_runtime.server.text.tokenizer import ModelTokenizer

MarkerTokens = tuple[tuple[int, ...], ...]
_BEFORE, _BEHIND = ("", "\n", "\n\n", " ", "."), ("", "\n", "\n\n", " ")


def marker_tokens(tokenizer: ModelTokenizer, marker: str) -> MarkerTokens:
    """Return the shortest sequences of tokens that show ``marker``; first one that shows nothing else.

    A marker that is one token has one sequence. Of one that is several, the last token may have a newline,
    and the first a blank.
    """
    found = dict.fromkeys(
        _around(tokenizer, tokenizer.encode(f"{before}{marker}{behind}", adds_special=False), marker)
        for before, behind in product(_BEFORE, _BEHIND)
    )
    return tuple(sorted(filter(None, found), key=lambda tokens: tokenizer.decode(tokens) != marker))


def _around(tokenizer: ModelTokenizer, tokens: list[int], marker: str) -> tuple[int, ...]:
    """Return the fewest neighbours among ``tokens`` that show ``marker``; none if they do not."""
    while len(tokens) > 1 and marker in tokenizer.decode(tokens[1:]):
        tokens = tokens[1:]
    while len(tokens) > 1 and marker in tokenizer.decode(tokens[:-1]):
        tokens = tokens[:-1]
    return tuple(tokens) if marker in tokenizer.decode(tokens) else ()
