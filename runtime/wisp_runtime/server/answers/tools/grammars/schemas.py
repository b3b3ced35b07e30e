"""JSON schemas of calls' arguments, as grammars need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wisp_runtime.server.answers.tools.format import Tool

_REFERENCED = ("$defs", "definitions")
_LENIENT = {"lenient": True}
_WORDS = frozenset({"description", "title", "examples", "default"})
_COMBINED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "additionalProperties"})
"""Keywords beside which an object's properties are not all that it may have."""


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: an object's.

    What a strict tool asks for and llguidance cannot hold is an error when the grammar is compiled; of
    another tool it is ignored.
    """
    schema = _closed({"type": "object", "properties": {}, **tool.parameters})
    return schema if tool.is_strict else {**schema, "x-guidance": _LENIENT}


def property_schema(tool: Tool, name: str) -> dict[str, Any]:
    """Return the schema of one argument, with the definitions to which it may refer."""
    schema = properties(tool)[name]
    found = dict(_closed(schema)) if isinstance(schema, Mapping) else {}
    if '"$ref"' in json.dumps(found):
        found |= {key: tool.parameters[key] for key in _REFERENCED if key in tool.parameters}
    return found if tool.is_strict else {**found, "x-guidance": _LENIENT}


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no properties but those that it names, unless it says otherwise.

    JSON Schema allows others; small models, allowed everything, write them without end. Words for the model
    are left out: they would only make the grammar long.
    """
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: value for key, value in schema.items() if key not in _WORDS}
    if "items" in closed:
        closed["items"] = _closed(closed["items"])
    if isinstance(closed.get("properties"), Mapping):
        closed["properties"] = {name: _closed(value) for name, value in closed["properties"].items()}
        if not _COMBINED & closed.keys():
            closed["additionalProperties"] = False
    return closed


def properties(tool: Tool) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments by name, in their order."""
    found = tool.parameters.get("properties")
    return found if isinstance(found, Mapping) else {}


def is_required(tool: Tool, name: str) -> bool:
    """Return whether each call has the argument."""
    required = tool.parameters.get("required")
    return isinstance(required, list) and name in required
