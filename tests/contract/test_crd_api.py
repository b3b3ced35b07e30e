"""The CRD and ``wisp_operator.api`` say the same, field for field: names, types, defaults, limits."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union

import pytest
import yaml

from wisp_operator import api
from wisp_operator.api.quantities import (
    CORES_PATTERN,
    DURATION_PATTERN,
    QUANTITY_PATTERN,
    Cores,
    Duration,
    Quantity,
)
from wisp_operator.api.schema_parser import Items, Range, Text, api_name
from wisp_operator.core import status

CRD = yaml.safe_load((Path(__file__).parents[2] / "crds" / "inferencemodels.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
MISSING = object()


def key_of(field: dataclasses.Field[Any]) -> str:
    return api_name(field.name.rstrip("_"))


def unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    """A type without ``Annotated`` and ``| None``, and the limits it carried."""
    limits: list[Any] = []
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint, *found = typing.get_args(hint)
            limits += found
        elif typing.get_origin(hint) in (Union, types.UnionType):
            options = [option for option in typing.get_args(hint) if option is not types.NoneType]
            if len(options) > 1:
                return hint, limits
            hint = options[0]
        else:
            return hint, limits


def objects(cls: type, schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, type, Mapping[str, Any]]]:
    """Every dataclass of the API beside the schema of the same object."""
    yield path, cls, schema
    for field in dataclasses.fields(cls):
        hint, _ = unwrapped(typing.get_type_hints(cls, include_extras=True)[field.name])
        below = schema["properties"].get(key_of(field), {})
        if typing.get_origin(hint) is tuple:
            hint, below = unwrapped(typing.get_args(hint)[0])[0], below.get("items", {})
        if dataclasses.is_dataclass(hint):
            yield from objects(typing.cast(type, hint), below, f"{path}.{key_of(field)}")


SPEC_OBJECTS = list(objects(api.Spec, SCHEMA["spec"], "spec"))
STATUS_OBJECTS = list(objects(status.Status, SCHEMA["status"], "status"))
FIELDS = [
    pytest.param(cls, field, schema["properties"].get(key_of(field), {}), id=f"{path}.{key_of(field)}")
    for path, cls, schema in [*SPEC_OBJECTS, *STATUS_OBJECTS]
    for field in dataclasses.fields(cls)
]
SPEC_FIELDS = [param for param in FIELDS if str(param.id).startswith("spec.")]


@pytest.mark.parametrize(
    ("cls", "schema"),
    [pytest.param(cls, schema, id=path) for path, cls, schema in [*SPEC_OBJECTS, *STATUS_OBJECTS]],
)
def test_an_object_has_the_same_fields_on_both_sides(cls, schema):
    assert {key_of(field) for field in dataclasses.fields(cls)} == set(schema["properties"])


@pytest.mark.parametrize(
    ("cls", "schema"), [pytest.param(cls, schema, id=path) for path, cls, schema in SPEC_OBJECTS]
)
def test_the_same_fields_are_required(cls, schema):
    required = {
        key_of(field)
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    assert required == set(schema.get("required", ()))


def schema_type(hint: Any) -> str:
    """The JSON type that a Python type is written as."""
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType) or hint is Cores:
        return "int-or-string"
    if dataclasses.is_dataclass(hint) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "object"
    if origin is tuple:
        return "array"
    return {bool: "boolean", int: "integer", float: "number"}.get(hint, "string")


@pytest.mark.parametrize(("cls", "field", "schema"), FIELDS)
def test_a_field_has_the_same_type(cls, field, schema):
    hint, _ = unwrapped(typing.get_type_hints(cls, include_extras=True)[field.name])
    found = "int-or-string" if schema.get("x-kubernetes-int-or-string") else schema["type"]
    assert found == schema_type(hint)


@pytest.mark.parametrize(("cls", "field", "schema"), SPEC_FIELDS)
def test_a_field_has_the_same_default(cls, field, schema):
    given = schema.get("default", MISSING)
    if field.default_factory is dataclasses.MISSING:
        default = MISSING if field.default in (dataclasses.MISSING, None, ()) else field.default
        assert given == default
        return
    built = field.default_factory()
    if not dataclasses.is_dataclass(built):  # an absent list or map reads as an empty one
        assert (given, built) == (MISSING, {})
        return
    # The API server checks a section's default against its rules before it fills in the fields' own
    # defaults, so the CRD repeats those that rules look at.
    assert given == {key: schema["properties"][key]["default"] for key in given}


@pytest.mark.parametrize(("cls", "field", "schema"), FIELDS)
def test_a_field_allows_the_same_words(cls, field, schema):
    hint, _ = unwrapped(typing.get_type_hints(cls, include_extras=True)[field.name])
    words = list(typing.get_args(hint)) if typing.get_origin(hint) is Literal else None
    if words is None or cls.__name__ == "Condition":
        return  # conditions may grow without a new CRD
    assert schema["enum"] == words


def limits_in_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    keys = (
        *("minimum", "maximum", "minLength", "maxLength", "pattern"),
        *("minItems", "maxItems", "maxProperties", "x-kubernetes-list-map-keys"),
    )
    return {key: schema[key] for key in keys if key in schema}


def limits_in_python(hint: Any) -> dict[str, Any]:
    bare, limits = unwrapped(hint)
    if typing.get_origin(bare) in (Union, types.UnionType):  # a number or a word
        number, words = typing.get_args(bare)
        return {**limits_in_python(number), "pattern": f"^{'|'.join(typing.get_args(words))}$"}
    if bare is Duration:
        return {"maxLength": 21, "pattern": DURATION_PATTERN}
    if bare is Quantity:
        return {"maxLength": 8, "pattern": QUANTITY_PATTERN}
    if bare is Cores:
        return {"minimum": 1, "maximum": 9999, "maxLength": 7, "pattern": CORES_PATTERN}
    found: dict[str, Any] = {}
    for limit in limits:
        match limit:
            case Range(low, high):
                found |= {"minimum": low, "maximum": high}
            case Text(max_length, pattern, _, min_length):
                found |= {"minLength": min_length, "maxLength": max_length}
                found |= {"pattern": pattern} if pattern else {}
            case Items(max_items, unique, min_items):
                found |= {"maxProperties" if schema_type(bare) == "object" else "maxItems": max_items}
                found |= {"x-kubernetes-list-map-keys": [api_name(unique)]} if unique else {}
                found |= {"minItems": min_items} if min_items else {}
    return found


@pytest.mark.parametrize(("cls", "field", "schema"), SPEC_FIELDS)
def test_a_field_has_the_same_limits(cls, field, schema):
    hint = typing.get_type_hints(cls, include_extras=True)[field.name]
    assert limits_in_schema(schema) == limits_in_python(hint)
    bare, _ = unwrapped(hint)
    arguments = [argument for argument in typing.get_args(bare) if argument is not Ellipsis]
    if schema.get("type") == "array" and not dataclasses.is_dataclass(unwrapped(arguments[0])[0]):
        assert limits_in_schema(schema["items"]) == limits_in_python(arguments[0])
    if "additionalProperties" in schema:
        assert limits_in_schema(schema["additionalProperties"]) == limits_in_python(arguments[1])


def test_the_longest_texts_that_the_patterns_allow_are_as_long_as_the_crd_says():
    assert len(Duration("99999ms99999ms99999ms")) == 21
    assert len(Quantity("999999Mi")) == 8
    assert len(Cores("999999m")) == 7


@pytest.mark.parametrize("missing", ["model", "gpu", "scaling"])
def test_the_comparison_notices_a_field_that_one_side_lacks(missing):
    schema = {**SCHEMA["spec"]["properties"]}
    schema.pop(missing)
    assert {key_of(field) for field in dataclasses.fields(api.Spec)} != set(schema)


def test_names_of_the_resource_are_the_same():
    spec = CRD["spec"]
    assert (spec["group"], spec["versions"][0]["name"]) == (api.GROUP, api.VERSION)
    assert (spec["names"]["kind"], spec["names"]["plural"]) == (api.KIND, api.PLURAL)
    assert CRD["metadata"]["name"] == f"{api.PLURAL}.{api.GROUP}"
