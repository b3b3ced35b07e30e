"""Run a tokenized request and respond: with one JSON object, or with a stream of chunks.

Chat and plain completions differ in their JSON only; each brings a :class:`ResponseFormatter`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wisp_runtime.server.api.generation import Choice, Generator
from wisp_runtime.server.http.sse import DONE, EventStream, event, unless_client_leaves
from wisp_runtime.server.parsing.requests import GenerationRequest
from wisp_runtime.server.text.deltas import TextDelta


class ResponseFormatter(Protocol):
    """Writer of one choice's JSON; keeps state from delta to delta."""

    def chunks(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the choices of the stream's next chunks for ``delta``, without their index; maybe none."""
        ...

    def choice(self, deltas: Sequence[TextDelta]) -> dict[str, Any]:
        """Return the complete choice, without its index."""
        ...


@dataclass(frozen=True)
class GenerationJob:
    """A tokenized request.

    Attributes:
        request: the parsed body.
        choices: one per prompt and ``n``, prompt after prompt.
        prefix: request-id prefix (``chatcmpl``).
        kind, chunk_kind: values of ``object``.
        formatter: factory of a choice's formatter, by its index.
    """

    request: GenerationRequest
    choices: list[Choice]
    prefix: str
    kind: str
    chunk_kind: str
    formatter: Callable[[int], ResponseFormatter]


async def respond(generator: Generator, job: GenerationJob, http_request: Request) -> Response:
    """Run ``job`` and return its response; abort its sequences if the client disconnects."""
    identity = f"{job.prefix}-{uuid.uuid4().hex}"
    envelope = {"id": identity, "object": job.kind, "created": int(time.time()), "model": job.request.model}
    headers = {"X-Request-Id": identity}
    if job.request.stream:
        return EventStream(_events(generator, job, envelope | {"object": job.chunk_kind}), headers)
    body = await unless_client_leaves(http_request.receive, _collect(generator, job))
    return JSONResponse(envelope | body, headers=headers)


async def _collect(generator: Generator, job: GenerationJob) -> dict[str, Any]:
    deltas: list[list[TextDelta]] = [[] for _ in job.choices]
    async with aclosing(generator.merged(job.choices)) as merged:
        async for index, delta in merged:
            deltas[index].append(delta)
    choices = [{"index": index, **job.formatter(index).choice(its)} for index, its in enumerate(deltas)]
    return {"choices": choices, "usage": _usage(job)}


async def _events(
    generator: Generator, job: GenerationJob, envelope: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    options = job.request.stream_options
    wants_usage = options is not None and bool(options.include_usage)
    no_usage = {"usage": None} if wants_usage else {}
    formatters = [job.formatter(index) for index in range(len(job.choices))]
    async with aclosing(generator.merged(job.choices)) as merged:
        async for index, delta in merged:
            for chunk in formatters[index].chunks(delta):
                yield event(envelope | {"choices": [{"index": index, **chunk}]} | no_usage)
    if wants_usage:
        yield event(envelope | {"choices": [], "usage": _usage(job)})
    yield DONE


def _usage(job: GenerationJob) -> dict[str, Any]:
    """Count tokens: each prompt once, however many choices it has."""
    firsts = job.choices[:: job.request.n or 1]
    prompt_tokens = sum(len(choice.submit.prompt) for choice in firsts)
    generated_tokens = sum(choice.generated_tokens for choice in job.choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in firsts)},
    }
