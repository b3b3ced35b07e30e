"""Parse one InferenceModel from plain data, strictly: every problem at once.

Rules that span fields are in :mod:`.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wisp_operator.api.rules import violations
from wisp_operator.api.schema_parser import nearest, read_object, show, unknown_field
from wisp_operator.api.types import API_VERSION, KIND, InferenceModel, Spec
from wisp_operator.errors import InvalidModel, Problem

_METADATA = (
    *("name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"),
    *("uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)


def parse(document: Any, *, namespace: str = "default") -> InferenceModel:
    """Read one InferenceModel from plain data, strictly.

    Args:
        document: the object as YAML or JSON gave it.
        namespace: default where ``metadata.namespace`` is absent.

    Raises:
        InvalidModel: with every problem: unknown fields, wrong types and values, broken rules.
    """
    problems = _envelope_problems(document)
    if not isinstance(document, Mapping) or any(
        problem.path in ("apiVersion", "kind") for problem in problems
    ):
        raise InvalidModel(problems)
    spec = read_object(Spec, document.get("spec") or {}, "spec", problems)
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    model = InferenceModel(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace") or namespace),
        spec=spec,
        uid=str(metadata.get("uid") or ""),
        generation=generation if isinstance(generation := metadata.get("generation"), int) else 0,
    )
    problems += violations(model, unreadable=[problem.path for problem in problems])
    if problems:
        raise InvalidModel(problems)
    return model


def _envelope_problems(document: Any) -> list[Problem]:
    """Check everything around ``spec``."""
    if not isinstance(document, Mapping):
        return [
            Problem(
                "", f"the document is not a map of fields; an {KIND} starts with apiVersion: {API_VERSION}"
            )
        ]
    known = ("apiVersion", "kind", "metadata", "spec", "status")
    problems = [unknown_field(key, "", known) for key in document if key not in known]
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = document.get(key)
        if given is None:
            problems.append(Problem(key, f"is required; write {wanted}"))
        elif given != wanted:
            meant = (
                f"; did you mean {wanted}?"
                if nearest(show(given), [wanted])
                else f"; only {wanted} is read here"
            )
            problems.append(Problem(key, f"{show(given)} is not {wanted}{meant}"))
    return problems + _metadata_problems(document.get("metadata"))


def _metadata_problems(metadata: Any) -> list[Problem]:
    if not isinstance(metadata, Mapping):
        return [Problem("metadata.name", "is required")]
    problems = [unknown_field(key, "metadata", _METADATA) for key in metadata if key not in _METADATA]
    problems += [
        Problem(f"metadata.{key}", f"{show(metadata[key])} is not a text (put it in quotes)")
        for key in ("name", "namespace")
        if metadata.get(key) is not None and not isinstance(metadata[key], str)
    ]
    if metadata.get("name") is None:
        problems.append(Problem("metadata.name", "is required"))
    return problems
