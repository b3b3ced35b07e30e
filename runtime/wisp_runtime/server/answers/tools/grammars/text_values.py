"""Values that a markup writes without quotes: text, or JSON of another type, up to a closing tag.

Texts follow ``enum`` and ``const`` of their schema, those of strict tools also ``pattern`` and lengths. A
text that would be read as another type, which the schema allows as well, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wisp_runtime.server.answers.tools.grammars.lark import LarkRules, either, expression, quoted
from wisp_runtime.server.answers.tools.grammars.patterns import complete
from wisp_runtime.server.answers.tools.scanners.schema_types import (
    MAX_DEPTH,
    SchemaTypes,
    json_text,
    resolved,
    type_of,
)

_KEPT = ("$defs", "definitions", "x-guidance")
_WORDS = {"boolean": "true|false", "null": "null"}
_FIRST_CHARS = {"number": r"\-0-9", "array": r"\[", "object": r"\{"}


class TextValues:
    """Values up to a closing tag.

    Args:
        rules: rules to which theirs are added.
        tag: text that ends a value; no value has it in it, white space aside.
        root: schema in which references are found.
        is_strict: whether texts must be valid in every respect.
    """

    def __init__(self, rules: LarkRules, tag: str, root: Mapping[str, Any], *, is_strict: bool) -> None:
        self._rules, self._tag, self._root, self._is_strict = rules, tag, root, is_strict
        self._types = SchemaTypes(root)

    def value(self, schema: Mapping[str, Any]) -> str:
        """Return the symbol of a value that is valid by ``schema``, and the tag."""
        kept = {key: schema[key] for key in _KEPT if key in schema}
        types = self._types.of(schema)
        symbols = [
            symbol
            for alternative in self._alternatives(schema, set(), 0)
            for symbol in self._symbols(alternative, kept, types)
        ]
        return self._rules.rule(either(dict.fromkeys(symbols)))

    def _alternatives(self, schema: Any, seen: set[int], depth: int) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that ``schema`` combines as alternatives, or itself; none of ``seen`` again."""
        schema = resolved(schema, self._root)
        self._rules.count_work(len(schema))
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list) and "type" not in schema and depth < MAX_DEPTH:
                fresh = [] if id(options) in seen else options
                seen.add(id(options))
                for option in fresh:
                    yield from self._alternatives(option, seen, depth + 1)
                return
        yield schema

    def _symbols(
        self, schema: Mapping[str, Any], kept: Mapping[str, Any], types: frozenset[str]
    ) -> Iterator[str]:
        """Yield the symbols of one alternative; ``types`` are those of all of them."""
        own = self._types.of(schema)
        if "string" in own:
            yield from self._texts(schema, types)
        if others := own - {"string"}:
            yield f"{self._rules.json({**_without_texts(schema, others), **kept})} {quoted(self._tag)}"

    def _texts(self, schema: Mapping[str, Any], types: frozenset[str]) -> Iterator[str]:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(values, list):
            yield self._text(schema, types)
            return
        self._rules.count_work(len(values))
        for value in values:
            if isinstance(value, str) and self._tag.strip() not in value and _stays_text(value, types):
                yield quoted(value + self._tag)

    def _text(self, schema: Mapping[str, Any], types: frozenset[str]) -> str:
        tag = expression(self._tag.strip())
        terms = [f"~/(?s:.*){tag}(?s:.+)/"]
        shapes = _shapes(schema) if self._is_strict else []
        terms += [f"(/{shape}/ {quoted(self._tag)})" for shape in shapes or ["(?s:.*)"]]
        if words := [_WORDS[name] for name in sorted(types & _WORDS.keys())]:
            terms.append(rf"~/\s*(?:{'|'.join(words)})\s*{tag}/")
        if first := "".join(_FIRST_CHARS[name] for name in sorted(types & _FIRST_CHARS.keys())):
            terms.append(rf"~/\s*[{first}](?s:.*)/")
        return self._rules.rule(self._rules.terminal(" & ".join(reversed(terms))), "[lazy]")


def _stays_text(value: str, types: frozenset[str]) -> bool:
    return json_text(value, types).startswith('"')


def _shapes(schema: Mapping[str, Any]) -> list[str]:
    """Return the expressions of which a text must match each."""
    shapes = []
    if isinstance(schema.get("pattern"), str):
        shapes.append(complete(schema["pattern"]))
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
    if shortest or longest != "":
        shapes.append(f"(?s:.{{{shortest},{longest}}})")
    return shapes


def _without_texts(schema: Mapping[str, Any], types: frozenset[str]) -> dict[str, Any]:
    """Return a schema of the values of ``schema`` that are no texts, of which ``types`` are there."""
    kept = dict(schema)
    if isinstance(kept.get("enum"), list):
        kept["enum"] = [value for value in kept["enum"] if type_of(value) != "string"]
    named = kept.get("type")
    if isinstance(named, list):
        kept["type"] = [name for name in named if name != "string"]
    elif named is None and "enum" not in kept and "const" not in kept:
        kept["type"] = sorted(types)
    return kept
