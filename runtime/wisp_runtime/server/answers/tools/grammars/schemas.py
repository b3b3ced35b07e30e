"""JSON schemas of calls' arguments, as grammars need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wisp_runtime.server.answers.tools.format import Tool
from wisp_runtime.server.structured.closed_schema import closed_schema

_REFERENCED = ("$defs", "definitions")
_LENIENT = {"lenient": True}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: an object's.

    What a strict tool asks for and llguidance cannot hold is an error when the grammar is compiled; of
    another tool it is ignored.
    """
    schema = closed_schema({"type": "object", "properties": {}, **tool.parameters})
    return schema if tool.is_strict else {**schema, "x-guidance": _LENIENT}


def property_schema(tool: Tool, name: str) -> dict[str, Any]:
    """Return the schema of one argument, with the definitions to which it may refer."""
    schema = properties(tool)[name]
    found = dict(closed_schema(schema)) if isinstance(schema, Mapping) else {}
    if '"$ref"' in json.dumps(found):
        found |= {key: tool.parameters[key] for key in _REFERENCED if key in tool.parameters}
    return found if tool.is_strict else {**found, "x-guidance": _LENIENT}


def properties(tool: Tool) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments by name, in their order."""
    found = tool.parameters.get("properties")
    return found if isinstance(found, Mapping) else {}


def required(tool: Tool) -> frozenset[str]:
    """Return the names of the arguments that each call has."""
    names = tool.parameters.get("required")
    return (
        frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    )
