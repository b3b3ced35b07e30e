"""One row of the tables of requests' fields, and its outcome by the official client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

MINTED = re.compile(r"[0-9a-f]{8,}")
TIMES = {"created", "created_at", "completed_at"}


class Outcome(Enum):
    """What becomes of a field: it has an effect, cannot have one, or is refused by its name."""

    WORKS = "works"
    SAME = "accepted"
    REFUSED = "400"


WORKS, SAME, REFUSED = Outcome


@dataclass(frozen=True)
class Field:
    """A field of a call's request, and a value of it.

    Attributes:
        name: the field; a nested one behind its parent and a dot.
        value: value of the field (of a nested one: of its parent).
        outcome: outcome that the value must have.
        note: effect, or reason why there is none; of what is refused the server's own sentence says it.
        beside: fields that both requests have, the one with the field and the one without.
        is_extension: whether the client sends it as ``extra_body``.
        is_strict: whether the client's strict types take what comes back.
    """

    name: str
    value: Any
    outcome: Outcome
    note: str = ""
    beside: Mapping[str, Any] = field(default_factory=dict)
    is_extension: bool = False
    is_strict: bool = True

    @property
    def parameter(self) -> str:
        """The call's parameter."""
        return self.name.split(".")[0]


def extensions(*rows: Field) -> list[Field]:
    """Return rows of fields that the client's types do not have."""
    return [replace(row, is_extension=True) for row in rows]


def arguments(row: Field, base: Mapping[str, Any], *, is_with: bool) -> dict[str, Any]:
    """Return the arguments of a client's call, with the field or without it."""
    given = {**base, **row.beside}
    extra = {**base.get("extra_body", {}), **row.beside.get("extra_body", {})}
    if is_with:
        (extra if row.is_extension else given)[row.parameter] = row.value
    return given | {"extra_body": extra}


def answer_of(answer: Any) -> Any:
    """Return what the client parsed, without what differs from request to request: ids and times."""
    if answer is None:
        return None
    if hasattr(answer, "to_dict"):
        return _without_ids(answer.to_dict(warnings=False))
    return [_without_ids(part.to_dict(warnings=False)) for part in answer]  # a stream, or a page


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_ids(item) for name, item in value.items() if name not in TIMES}
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    return MINTED.sub("#", value) if isinstance(value, str) else value
