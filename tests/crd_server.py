"""The API server's three steps for an InferenceModel: defaults, the structural schema, CEL rules.

The schema is checked by jsonschema, the rules by cel-python; ``tests/cluster`` applies the CRD to a real one.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import yaml

ROOT = Path(__file__).parents[1]
CRD = yaml.safe_load((ROOT / "crds" / "inferencemodels.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
Found = list[tuple[str, str]]


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as the API server applies it with ``fieldValidation=Strict``: unknown fields are errors."""
    found = dict(schema)
    if "properties" in found:
        found["properties"] = {key: strict(below) for key, below in found["properties"].items()}
        found["additionalProperties"] = False
    if "items" in found:
        found["items"] = strict(found["items"])
    return found


def validator() -> jsonschema.Draft202012Validator:
    schema = strict(SCHEMA)
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def fill_in(schema: Mapping[str, Any], value: Any) -> Any:
    """Fill in defaults as the API server does: only what is absent, parents first."""
    if isinstance(value, dict):
        for key, below in schema.get("properties", {}).items():
            if key not in value and "default" in below:
                value[key] = copy.deepcopy(below["default"])
            if key in value:
                fill_in(below, value[key])
    if isinstance(value, list):
        for item in value:
            fill_in(schema.get("items", {}), item)
    return value


def quantity(text: str) -> celpy.celtypes.DoubleType:
    """Kubernetes' quantity(), which cel-python lacks; isGreaterThan compares two."""
    number, unit = re.fullmatch(r"([0-9.]+)(.*)", text).groups()
    powers = {"": 1, "m": 1e-3, **{f"{u}i": 1024.0 ** (i + 1) for i, u in enumerate("KMGT")}}
    return celpy.celtypes.DoubleType(float(number) * (powers | {"M": 1e6, "G": 1e9, "T": 1e12})[unit])


@functools.cache
def program(rule: str) -> Any:
    environment = celpy.Environment()
    greater = {"isGreaterThan": lambda one, other: celpy.celtypes.BoolType(one > other)}
    functions = {"quantity": quantity, **greater}
    return environment.program(environment.compile(rule), functions)


def holds(rule: str, value: Any) -> bool:
    return bool(program(rule).evaluate({"self": celpy.json_to_cel(value)}))


def nodes(
    schema: Mapping[str, Any], value: Any, path: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Every object of a manifest beside its schema."""
    yield path, schema, value
    for key, below in schema.get("properties", {}).items():
        if isinstance(value, dict) and key in value:
            yield from nodes(below, value[key], f"{path}.{key}".lstrip("."))


def broken_rules(manifest: Mapping[str, Any]) -> Found:
    full = fill_in(SCHEMA, copy.deepcopy(manifest))
    return [
        (path, rule["message"])
        for path, schema, value in nodes(SCHEMA, full)
        for rule in schema.get("x-kubernetes-validations", ())
        if not holds(rule["rule"], value)
    ]


def manifest(spec: Mapping[str, Any], name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://Qwen/Qwen3-0.6B"}, **spec},
    }
