"""JSON types that a schema allows, for markups whose values have no type of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wisp_runtime.server.answers.tools.scanners.json_value import decoded

ALL_TYPES = frozenset({"string", "number", "boolean", "null", "object", "array"})
MAX_DEPTH = 16
_NAMES: Mapping[type, str] = {
    bool: "boolean",
    type(None): "null",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
}
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}


class SchemaTypes:
    """Types of the schemas within one schema; each is looked at once, however often it is referred to.

    Args:
        root: schema in which references are found. It must not change.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}  # by identity, which the schema itself keeps

    def of(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """Return the types of the values that ``schema`` may allow; integers are numbers.

        Args:
            schema: JSON schema of one value; anything else allows every type.
            depth: references and alternatives passed so far.
        """
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return ALL_TYPES
        if id(schema) not in self._known:
            self._known[id(schema)] = schema, ALL_TYPES  # of a schema that refers to itself
            self._known[id(schema)] = schema, self._allowed(schema, depth + 1)
        return self._known[id(schema)][1]

    def _allowed(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        types = _named_types(schema)
        if isinstance(schema.get("$ref"), str):
            types &= self.of(_referenced(schema["$ref"], self._root), depth)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                types &= frozenset().union(*(self.of(option, depth) for option in schema[key]))
        if isinstance(schema.get("allOf"), list):
            for part in schema["allOf"]:
                types &= self.of(part, depth)
        return types


def _named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = ALL_TYPES
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types = frozenset("number" if name == "integer" else str(name) for name in named)
    if isinstance(schema.get("enum"), list):
        types &= frozenset(_NAMES.get(kind, "object") for kind in set(map(type, schema["enum"])))
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
    return _NAMES.get(type(value), "object")


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
