"""The CRD keeps the rules that a Kubernetes API server has for CRDs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

CRD = yaml.safe_load((Path(__file__).parents[2] / "crds" / "inferencemodels.yaml").read_text())
VERSION = CRD["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
KEYWORDS = {
    *("type", "format", "description", "example", "default", "enum", "pattern", "required", "anyOf"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
    *("properties", "items", "additionalProperties"),
    *("x-kubernetes-validations", "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for key, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{key}".lstrip("."))
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from walk(schema[key], f"{path}[]")


NODES = [pytest.param(path, schema, id=path or "root") for path, schema in walk(ROOT)]
SPEC_NODES = [param for param in NODES if str(param.id).startswith("spec.")]


@pytest.mark.parametrize(("path", "schema"), NODES)
def test_the_schema_is_structural(path, schema):
    assert set(schema) <= KEYWORDS
    assert ("type" in schema) != bool(schema.get("x-kubernetes-int-or-string"))
    if schema.get("type") == "array":
        assert "items" in schema
        assert schema.get("x-kubernetes-list-type") in ("atomic", "map", None)
    assert not ("properties" in schema and "additionalProperties" in schema)
    assert set(schema.get("required", ())) <= set(schema.get("properties", {}))
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        assert key in schema["items"]["required"]


@pytest.mark.parametrize(("path", "schema"), SPEC_NODES)
def test_everything_a_user_writes_is_described_and_bounded(path, schema):
    """Bounds keep the estimated cost of CEL rules within the API server's limit."""
    assert len(schema.get("description", "")) > 10 or path.endswith("[]")
    kind = schema.get("type")
    if kind == "string":
        assert "maxLength" in schema or "enum" in schema
    if kind == "array":
        assert "maxItems" in schema
    if "additionalProperties" in schema:
        assert "maxProperties" in schema
    if kind == "integer" or schema.get("x-kubernetes-int-or-string"):
        assert {"minimum", "maximum"} <= set(schema)


@pytest.mark.parametrize(("path", "schema"), NODES)
def test_no_yaml_word_is_read_as_something_else(path, schema):
    """``Off`` and ``None`` are words of the API, and booleans or nulls to YAML unless quoted."""
    assert all(isinstance(word, str) for word in schema.get("enum", ()))
    if schema.get("type") == "string" and "default" in schema:
        assert isinstance(schema["default"], str)


def test_kubectl_get_shows_what_a_user_asks_first():
    columns = VERSION["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    assert narrow == ["Ready", "Replicas", "State", "Reason", "Fit", "Cold", "Age"]
    assert [column["name"] for column in columns if column.get("priority") == 1] == [
        *("URL", "GPU", "Model", "Message")
    ]


def test_every_column_and_the_scale_subresource_point_at_fields():
    known = {f".{path}" for path, _ in walk(ROOT)}
    scale = VERSION["subresources"]["scale"]
    paths = [column["jsonPath"] for column in VERSION["additionalPrinterColumns"]] + list(scale.values())
    for path in paths:
        if not path.startswith(".metadata"):
            assert path.split("[?")[0] in known


def test_the_scale_subresource_never_lets_the_autoscaler_write_spec():
    scale = VERSION["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.replicas"
    assert scale["statusReplicasPath"] == ".status.replicas"
    assert "status" in VERSION["subresources"]
