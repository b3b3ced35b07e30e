"""Places in a schema of what a compiler's message names, as JSON pointers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_PLACES = 4
_NAMED = {
    re.compile(r"Unimplemented keys: (\[.*?\])"): None,
    re.compile(r"Invalid type: (.*)"): "type",
    re.compile(r"Unknown format: (.*)"): "format",
}
"""Messages, and the keyword whose value they name; None: they name keywords."""
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose own keys are names, no keywords."""
_VALUES = frozenset({"const", "enum", "default", "examples"})


def places_of(why: str, schema: Any) -> list[str]:
    """Return where in ``schema`` the keywords are that a message is about; none if it says nothing of them.

    At most ``MAX_PLACES``, in the order of the schema, as fragments (``#/properties/a/not``).
    """
    for pattern, keyword in _NAMED.items():
        if found := pattern.match(why):
            wanted = found[1]
            keys = json.loads(wanted) if keyword is None else [keyword]
            places = (
                place
                for place, key, value in _keywords(schema, "#")
                if key in keys and (keyword is None or value == wanted)
            )
            return [place for place, _ in zip(places, range(MAX_PLACES), strict=False)]
    return []


def _keywords(schema: Any, place: str) -> Iterator[tuple[str, str, Any]]:
    """Yield each keyword of a schema and of those in it: its place, itself, and its value."""
    if isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from _keywords(inner, f"{place}/{number}")
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        inner = f"{place}/{_escaped(key)}"
        yield inner, key, value
        if key in _MAPS and isinstance(value, Mapping):
            for name, described in value.items():
                yield from _keywords(described, f"{inner}/{_escaped(name)}")
        elif key not in _VALUES:
            yield from _keywords(value, inner)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
