"""Fields by which a request prescribes the format of its answer: OpenAI's, and vLLM's of two generations."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from wisp_runtime.server.parsing.body import finite
from wisp_runtime.server.parsing.strict_model import Off, StrictModel

MAX_CHOICES_OF_TEXT = 10_000
MAX_TAGS = 128


def _schema(value: Any) -> dict[str, Any] | bool:
    """Check that a value may be a JSON schema."""
    if not isinstance(value, dict | bool):
        raise ValueError("A JSON schema must be an object.")
    return value


def _from_text(value: Any) -> Any:
    """Return what a text of JSON means, and any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=_refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"It is no JSON: {error}.") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


AnySchema = dict[str, Any] | bool
Schema = Annotated[AnySchema, PlainValidator(_schema, json_schema_input_type=AnySchema)]
SchemaOrText = Annotated[Schema, BeforeValidator(_from_text, json_schema_input_type=AnySchema | str)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES_OF_TEXT)]


class JsonSchema(StrictModel):
    """A named schema. Answers always follow it; ``strict`` also closes its objects: see ``closed_schema``."""

    name: str | None = None
    description: str | None = None
    json_schema: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class TagStructure(StrictModel):
    """A region of an answer: ``begin``, JSON by the schema, ``end``."""

    begin: Text
    json_schema: Annotated[Schema, Field(alias="schema")]
    end: str


class StructuralTag(StrictModel):
    """Regions amid free text, each begun by one of ``triggers``."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: Annotated[list[TagStructure], Field(min_length=1, max_length=MAX_TAGS)]
    triggers: Annotated[list[Text], Field(min_length=1, max_length=MAX_TAGS)]


class ResponseFormat(StrictModel):
    """Format of an answer. A ``json_object`` may have a schema, as llama.cpp's server reads it."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    object_schema: Annotated[Schema | None, Field(alias="schema")] = None
    structures: Annotated[list[TagStructure], Field(min_length=1, max_length=MAX_TAGS)] | None = None
    triggers: Annotated[list[Text], Field(min_length=1, max_length=MAX_TAGS)] | None = None


class StructuredOutputs(StrictModel):
    """vLLM's ``structured_outputs``: one format and its options."""

    json_schema: Annotated[SchemaOrText | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Texts | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: (
        Annotated[StructuralTag, BeforeValidator(_from_text, json_schema_input_type=StructuralTag | str)]
        | None
    ) = None
    whitespace_pattern: Text | None = None
    disable_any_whitespace: bool | None = None
    # Accepted and ignored: there is one backend, and it adds no properties.
    disable_fallback: bool | None = None
    disable_additional_properties: Off | None = None


class StructuredFields(StrictModel):
    """The fields, as a base of requests."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: Text | None = None
    guided_choice: Texts | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None
    guided_decoding_backend: Literal["auto", "guidance"] | None = None
