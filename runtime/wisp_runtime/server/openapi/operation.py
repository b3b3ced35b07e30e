"""One operation of the API, as the OpenAPI document describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from wisp_runtime.server.openapi import answers


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a path.

    Attributes:
        method: HTTP method, lower case.
        path: path, with ``{names}`` of its parameters.
        summary: one line of what it does.
        answer: type of the answer with status 200.
        body: model of the request's body; None: it has none.
        streams: whether ``stream: true`` gives server-sent events.
        error: type of an error's answer.
        statuses: error statuses that it may answer with.
        queries: schemas of the parameters of its query, by name.
    """

    method: str
    path: str
    summary: str
    answer: Any
    body: type[BaseModel] | None = None
    streams: bool = False
    error: Any = answers.Error
    statuses: tuple[int, ...] = (400, 404, 413, 415, 429, 500, 503)
    queries: Mapping[str, dict[str, Any]] = field(default_factory=dict)
