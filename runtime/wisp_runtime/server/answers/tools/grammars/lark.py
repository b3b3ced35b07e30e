"""Rules of a grammar in llguidance's Lark, in which special tokens are written like any text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_JSON_FORMAT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as chat templates write it: masks stay small, and no model fills lines with spaces."""


MAX_WORK = 1 << 20
"""Bytes of JSON, and values, written for one grammar: schemas can ask for the square of their size."""


class GrammarTooLarge(ValueError):
    """Schemas combine to more than a grammar may have."""


class LarkRules:
    """Rules under construction.

    Args:
        special: ids of the markup's tokens by text, of those that grammars see as one. A grammar's own text
            never matches such a token.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._rules = list[str]()
        self._names = dict[str, str]()
        self._work = 0
        texts = sorted(special, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule; return its name. Rules with the same body are one."""
        return self._add("rule", f"{options}: {body}")

    def terminal(self, body: str) -> str:
        """Add a terminal, a regular expression; return its name."""
        return self._add("TERMINAL", f": {body}")

    def _add(self, kind: str, rule: str) -> str:
        if rule not in self._names:
            self._names[rule] = f"{kind}_{len(self._rules)}"
            self._rules.append(self._names[rule] + rule)
        return self._names[rule]

    def count_work(self, amount: int) -> None:
        """Count work on the rules.

        Raises:
            GrammarTooLarge: it is more than one grammar may cost.
        """
        self._work += amount
        if self._work > MAX_WORK:
            raise GrammarTooLarge("the schemas of the tools combine to too large a grammar")

    def is_special(self, text: str) -> bool:
        """Return whether ``text`` is a token of its own."""
        return text in self._special

    def literal(self, text: str) -> str:
        """Return the symbols of a text, which may have special tokens in it."""
        symbols, at = list[str](), 0
        for token in self._split.finditer(text):
            symbols += [quoted(text[at : token.start()]), f"<[{self._special[token.group()]}]>"]
            at = token.end()
        return " ".join(symbol for symbol in (*symbols, quoted(text[at:])) if symbol)

    def text(self, *markers: str) -> str:
        """Return the symbol of any text, in which no marker that is a token is spelled out."""
        spelled = "|".join(expression(marker) for marker in markers if self.is_special(marker))
        # One exclusion of all: several, each with states of its own, outgrow the lexer.
        return self.terminal(f"/(?s:.*)/ & ~/(?s:.*)(?:{spelled})(?s:.*)/" if spelled else "/(?s:.*)/")

    def text_without(self, line_start: str, text: str) -> str:
        """Return the symbol of any text in which no line begins like a call.

        Args:
            line_start: regular expression of what no line begins with, white space aside.
            text: marker that is not in it.
        """
        line = rf"(?:(?s:.*)\n)?[ \t\r\n]*(?:{line_start})"
        return self.terminal(rf"/(?s:.*)/ & ~/(?:{line}|(?s:.*){expression(text)})(?s:.*)/")

    def text_until(self, marker: str) -> str:
        """Return the symbol of any text up to the first ``marker``, and the marker."""
        if self.is_special(marker):
            return self.rule(f"{self.text(marker)} {self.literal(marker)}")
        return self.rule(f"{self.text()} {quoted(marker)}", "[lazy]")

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return the symbol of a JSON value that is valid by ``schema``."""
        asked = schema.get("x-guidance")
        options = {**_JSON_FORMAT, **(asked if isinstance(asked, Mapping) else {})}
        text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
        self.count_work(len(text))
        return self.rule(f"%json {text}")

    def source(self, start: str) -> str:
        """Return the grammar of the texts that ``start`` allows."""
        return "\n".join((f"start: {start}", *self._rules, ""))


def quoted(text: str) -> str:
    """Return the symbol of a text without special tokens; an empty text has none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def expression(text: str) -> str:
    """Return the regular expression of a text, for use between slashes."""
    return re.escape(text).replace("/", r"\/")


def either(symbols: Iterable[str]) -> str:
    """Return the symbols' alternatives, as one symbol."""
    return f"({' | '.join(symbols)})"


def repeated(first: str, next_one: str, *, is_parallel: bool) -> str:
    """Return ``first``, followed by any number of ``next_one`` if ``is_parallel``."""
    return f"{first} ({next_one})*" if is_parallel else first
