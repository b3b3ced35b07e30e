"""Makes random JSON schemas of what structured output supports, each from a seed."""

from __future__ import annotations

import json
import random
import string
from typing import Any

PATTERNS = (
    "^[a-z]{1,8}$",
    "^[A-Z]{2}-[0-9]{3}$",
    "[0-9]+",
    "^(red|green|blue)$",
    r"^\d{4}-\d{2}$",
    "^a.*z$",
    "^[^x]{2,5}$",
)
FORMATS = ("date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname", "duration", "uri")
NAMES = (
    "name",
    "id",
    "a",
    "b",
    "items",
    "x-y",
    "größe",
    'quo"te',
    "back\\slash",
    "",
    "日本",
    "line\nend",
    "a b",
    "$ref",
)


class SchemaMaker:
    """Makes one schema from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.definitions: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """Return a complete schema."""
        names = [f"d{i}" for i in range(self.random.choice((0, 0, 1, 2)))]
        self.definitions = dict.fromkeys(names)
        root = self.schema(3)
        made = {name: self.schema(2, name) for name in names}
        return {**root, "$defs": made} if made else root

    def schema(self, depth: int, inside: str | None = None) -> dict[str, Any]:
        """Return a schema of at most ``depth`` levels; a definition may refer to itself."""
        leaves = (self.text, self.integer, self.number, self.choice, self.constant, self.simple)
        inner = (self.object, self.object, self.array, self.any_of, self.one_of, self.all_of, self.several)
        if depth <= 0 or (inside is None and self.random.random() < 0.2):
            return self.random.choice(leaves)()
        if inside is None and self.definitions and self.random.random() < 0.25:
            return {"$ref": f"#/$defs/{self.random.choice(list(self.definitions))}"}
        if inside is not None:
            return self.object(depth, inside)
        return self.random.choice((*leaves[:3], *inner))(depth)

    def text(self, _depth: int = 0) -> dict[str, Any]:
        """Return a schema of strings."""
        kind = self.random.choice(("plain", "length", "pattern", "format", "both"))
        low = self.random.randint(0, 5)
        length = {"minLength": low, "maxLength": low + self.random.randint(0, 10)}
        match kind:
            case "length":
                return {"type": "string", **length}
            case "pattern":
                return {"type": "string", "pattern": self.random.choice(PATTERNS)}
            case "format":
                return {"type": "string", "format": self.random.choice(FORMATS)}
            case "both":
                return {"type": "string", "pattern": "^[a-f]+$", "minLength": 2, "maxLength": 6}
        return {"type": "string"}

    def integer(self, _depth: int = 0) -> dict[str, Any]:
        """Return a schema of integers."""
        low = self.random.randint(-1000, 1000)
        bounds = {"minimum": low, "maximum": low + self.random.choice((0, 1, 9, 500, 10**6))}
        kinds = (
            {},
            bounds,
            {"exclusiveMinimum": low},
            {"maximum": low},
            {"multipleOf": self.random.choice((2, 5, 7))},
        )
        return {"type": "integer", **self.random.choice(kinds)}

    def number(self, _depth: int = 0) -> dict[str, Any]:
        """Return a schema of numbers."""
        low = round(self.random.uniform(-100, 100), self.random.randint(0, 3))
        bounds = {"minimum": low, "maximum": round(low + self.random.choice((0.5, 3, 1000)), 3)}
        kinds = (
            {},
            bounds,
            {"exclusiveMinimum": low},
            {"exclusiveMaximum": low, "minimum": round(low - 10, 3)},
        )
        return {"type": "number", **self.random.choice(kinds)}

    def choice(self, _depth: int = 0) -> dict[str, Any]:
        """Return an enum."""
        values = ["red", 1, 2.5, None, True, 'a "b"', "ünï", [1, {"a": 2}], {"k": []}, "", -7, "1"]
        return {"enum": self.random.sample(values, self.random.randint(1, 6))}

    def constant(self, _depth: int = 0) -> dict[str, Any]:
        """Return a constant."""
        return {"const": self.random.choice(["fixed", 42, None, False, {"a": [1, "x"]}, []])}

    def simple(self, _depth: int = 0) -> dict[str, Any]:
        """Return a type alone."""
        return {"type": self.random.choice(["boolean", "null", "integer", "string"])}

    def several(self, _depth: int = 0) -> dict[str, Any]:
        """Return a list of types."""
        return {"type": self.random.sample(["string", "integer", "null", "boolean"], 2)}

    def object(self, depth: int = 1, inside: str | None = None) -> dict[str, Any]:
        """Return a schema of objects."""
        names = self.random.sample(NAMES, self.random.randint(0, 5))
        properties = {name: self.schema(depth - 1) for name in names}
        if inside is not None:
            properties["next"] = {"$ref": f"#/$defs/{inside}"}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if self.random.random() < 0.8:
            ends = [name for name in names if not _refers(properties[name])]
            schema["required"] = [name for name in ends if self.random.random() < 0.6]
        extra = self.random.random()
        if extra < 0.5:
            schema["additionalProperties"] = False
        elif extra < 0.65:
            schema["additionalProperties"] = self.schema(0)
        if self.random.random() < 0.1:
            schema["patternProperties"] = {"^p_[0-9]+$": self.schema(0)}
        if self.random.random() < 0.05:
            schema["minProperties"] = 1
        return schema

    def array(self, depth: int = 1) -> dict[str, Any]:
        """Return a schema of arrays."""
        low = self.random.randint(0, 3)
        schema: dict[str, Any] = {"type": "array", "items": self.schema(depth - 1)}
        if self.random.random() < 0.7 and not _refers(schema):
            schema |= {"minItems": low, "maxItems": low + self.random.randint(0, 4)}
        if self.random.random() < 0.2:
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        return schema

    def any_of(self, depth: int = 1) -> dict[str, Any]:
        """Return alternatives that may overlap."""
        branches = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        return {"anyOf": [*branches, self.schema(0)] if all(map(_refers, branches)) else branches}

    def one_of(self, depth: int = 1) -> dict[str, Any]:
        """Return alternatives that a constant tells apart."""
        branches = [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": self.schema(min(depth - 1, 0))},
                "required": ["kind", "value"],
            }
            for kind in string.ascii_lowercase[: self.random.randint(2, 3)]
        ]
        return {"oneOf": branches}

    def all_of(self, depth: int = 1) -> dict[str, Any]:
        """Return objects that must fit two schemas."""
        parts = [
            {"type": "object", "properties": {name: self.schema(min(depth - 1, 0))}, "required": [name]}
            for name in self.random.sample(("left", "right", "both"), 2)
        ]
        return {"allOf": parts}


def _refers(schema: dict[str, Any]) -> bool:
    """Return whether a schema refers to another: an answer need not come to an end if that is required."""
    return '"$ref": "#' in json.dumps(schema)
