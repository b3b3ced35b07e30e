"""The OpenAPI document of a served model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter

from wisp_plan.distribution import version
from wisp_runtime.server.openapi.operation import Operation
from wisp_runtime.server.openapi.operations import OPERATIONS
from wisp_runtime.server.parsing.strict_model import build

REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"
EVENTS = "text/event-stream"
EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "contentMediaType": JSON}},
    "required": ["data"],
}
"""An event of a stream; ``data`` is JSON, or ``[DONE]``."""


def openapi_document(names: Sequence[str]) -> dict[str, Any]:
    """Return the document.

    Args:
        names: names of the served model.
    """
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, schemas, names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Wisp runtime",
            "version": version(),
            "description": "One model on one pod; the gateway serves the same paths for all models.",
        },
        "paths": paths,
        "components": {"schemas": schemas.named},
    }


class _Schemas:
    """JSON schemas of types; those with names of their own are kept once, in :attr:`named`."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def of(self, type_: Any) -> dict[str, Any]:
        """Return the schema of a type; names below it are references."""
        schema = TypeAdapter(type_).json_schema(ref_template=REFERENCE)
        for name, named in schema.pop("$defs", {}).items():
            assert self.named.setdefault(name, named) == named, f"two models are called {name}"
        return schema


def _described(operation: Operation, schemas: _Schemas, names: Sequence[str]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.method}{re.sub(r'[^a-zA-Z0-9]+', '_', operation.path)}",
        "summary": operation.summary,
        "responses": _responses(operation, schemas),
    }
    parameters = [_parameter(name, names) for name in re.findall(r"\{(\w+)\}", operation.path)]
    parameters += [
        {"name": name, "in": "query", "schema": schema} for name, schema in operation.queries.items()
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        build(operation.body)
        schema = schemas.of(operation.body)
        _restrict_model(schema, names)
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return described


def _restrict_model(schema: dict[str, Any], names: Sequence[str]) -> None:
    """Name the values of ``model``: others are 404."""
    if (model := schema.get("properties", {}).get("model")) is not None:
        kinds = model.get("anyOf", [model])
        next(kind for kind in kinds if kind.get("type") == "string")["enum"] = list(names)


def _parameter(name: str, names: Sequence[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if name == "name":
        schema["enum"] = list(names)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _responses(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": schemas.of(operation.answer)}}
    if operation.streams:
        content[EVENTS] = {"schema": EVENT}
    error = {JSON: {"schema": schemas.of(operation.error)}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status in operation.statuses:
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": error}
    return responses
