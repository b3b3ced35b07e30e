"""Patterns of JSON schemas as regular expressions of grammars, which match a complete text."""

from __future__ import annotations

import re
from collections.abc import Iterator

ANY = "(?s:.*)"
_TOKEN = re.compile(r"\\.|.", re.DOTALL)
# In JSON schemas these are ASCII, as in JavaScript; in llguidance's expressions they are Unicode.
_CLASSES = {r"\d": "0-9", r"\w": "0-9A-Za-z_"}
_NEGATED = {r"\D": "[^0-9]", r"\W": "[^0-9A-Za-z_]"}


def complete(pattern: str) -> str:
    """Return the expression of all texts in which ``pattern`` matches somewhere, or at its anchors."""
    return "|".join(f"(?:{_complete_alternative(alternative)})" for alternative in _alternatives(pattern))


def _complete_alternative(tokens: list[str]) -> str:
    starts, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    inner = "".join(tokens[int(starts) : len(tokens) - int(ends)])
    return ("" if starts else ANY) + f"(?:{inner})" + ("" if ends else ANY)


def _alternatives(pattern: str) -> Iterator[list[str]]:
    """Split a pattern at the ``|`` that are in no group; write its tokens as grammars have them."""
    tokens, depth, is_class = list[str](), 0, False
    for token in _TOKEN.findall(pattern):
        if token == "|" and not depth and not is_class:
            yield tokens
            tokens = []
            continue
        if not is_class:
            depth += (token == "(") - (token == ")")
        is_class = token != "]" if is_class else token == "["
        tokens.append(_written(token, is_class=is_class))
    yield tokens


def _written(token: str, *, is_class: bool) -> str:
    if token in _CLASSES:
        return _CLASSES[token] if is_class else f"[{_CLASSES[token]}]"
    if token in _NEGATED and not is_class:
        return _NEGATED[token]
    return r"\/" if token == "/" else token
