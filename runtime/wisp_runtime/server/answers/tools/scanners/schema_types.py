"""JSON types that a schema allows, for markups whose values have no type of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wisp_runtime.server.answers.tools.scanners.json_value import decoded

ALL_TYPES = frozenset({"string", "number", "boolean", "null", "object", "array"})
MAX_DEPTH = 16
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the types of the values that ``schema`` may allow; integers are numbers.

    Args:
        schema: JSON schema of one value; anything else allows every type.
        root: schema in which its references are found.
        depth: references and alternatives passed so far.
    """
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return ALL_TYPES
    schema = resolved(schema, root)
    types = _named_types(schema)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            options = (types_of(option, root, depth + 1) for option in schema[key])
            types &= frozenset().union(*options)
    if isinstance(schema.get("allOf"), list):
        for part in schema["allOf"]:
            types &= types_of(part, root, depth + 1)
    return types


def _named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = ALL_TYPES
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types = frozenset("number" if name == "integer" else str(name) for name in named)
    if isinstance(schema.get("enum"), list):
        types &= frozenset(map(type_of, schema["enum"]))
    return types & {type_of(schema["const"])} if "const" in schema else types


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``schema`` with the schema to which it refers instead of the reference; ``{}`` for none."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found = _referenced(schema["$ref"], root)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**found, **rest} if isinstance(found, Mapping) else rest
    return schema if isinstance(schema, Mapping) else {}


def _referenced(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def type_of(value: Any) -> str:
    """Return the name of a decoded value's type."""
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def json_text(raw: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value that was written without quotes.

    Text stays text where only strings are allowed. Elsewhere it is the JSON that it reads as, if its type is
    allowed; what cannot be read is a string.
    """
    if types == {"string"}:
        return json.dumps(raw, ensure_ascii=False)
    text = raw.strip()
    if "string" not in types:
        text = _PYTHON_LITERALS.get(text, text)
    try:
        kind = type_of(decoded(text))
    except ValueError:
        return json.dumps(raw, ensure_ascii=False)
    fits = "string" not in types or (kind != "string" and kind in types)
    return text if fits else json.dumps(raw, ensure_ascii=False)
