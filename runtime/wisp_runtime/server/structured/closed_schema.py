"""Schemas whose objects have no properties but those that they name; JSON Schema by itself allows others.

Small models, allowed everything, write further properties without end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_WORDS = frozenset({"description", "title", "examples", "default"})
_COMBINED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "additionalProperties"})
"""Keywords beside which an object's properties are not all that it may have."""
_DEFINED = ("$defs", "definitions")
_BRANCHES = ("anyOf", "oneOf")


def closed_schema(schema: Any) -> Any:
    """Return a schema with ``additionalProperties: false`` in each object that does not say otherwise.

    An object that is combined with another schema stays as it is, and so do definitions and alternatives
    where one may be: to close two halves would allow neither. Words for the model are left out: they would
    only make the grammar long.
    """
    return _closed(schema, has_whole_parts=not _combines_objects(schema))


def _closed(schema: Any, has_whole_parts: bool) -> Any:
    """Return a closed schema.

    Args:
        schema: the schema, or what is in its place.
        has_whole_parts: whether a definition or alternative is all of the object that it describes.
    """
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: value for key, value in schema.items() if key not in _WORDS}
    if "items" in closed:
        closed["items"] = _closed(closed["items"], has_whole_parts)
    maps = ["properties", *(_DEFINED if has_whole_parts else ())]
    for key in maps:
        if isinstance(closed.get(key), Mapping):
            closed[key] = {name: _closed(value, has_whole_parts) for name, value in closed[key].items()}
    for key in _BRANCHES if has_whole_parts else ():
        if isinstance(closed.get(key), list):
            closed[key] = [_closed(branch, has_whole_parts) for branch in closed[key]]
    if isinstance(closed.get("properties"), Mapping) and not _COMBINED & closed.keys():
        closed["additionalProperties"] = False
    return closed


def _combines_objects(schema: Any) -> bool:
    """Return whether an object's properties may be those of two schemas anywhere in ``schema``."""
    if '"allOf"' in json.dumps(schema):
        return True
    rest = [schema]
    while rest:
        inner = rest.pop()
        if isinstance(inner, Mapping):
            if "properties" in inner and not {"$ref", *_BRANCHES}.isdisjoint(inner):
                return True
            rest += inner.values()
        elif isinstance(inner, list):
            rest += inner
    return False
