"""Answer a request whose prompts are tokens by now: as one JSON object, or as a stream of chunks.

Chat and plain completions differ in the shape of their JSON only; each brings a :class:`Shape`.
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

from wisp_runtime.server.api.generation import Answer, Generator
from wisp_runtime.server.http.sse import DONE, EventStream, event, unless_client_leaves
from wisp_runtime.server.parsing.requests import GenerationRequest
from wisp_runtime.server.text.codec import Piece


class Shape(Protocol):
    """How one answer of a request is written. Keeps what it needs from piece to piece."""

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Return the choices of the stream's next chunks for ``piece``, without their index; maybe none."""
        ...

    def choice(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the whole answer, without its index."""
        ...


@dataclass(frozen=True)
class Job:
    """A request ready to run.

    Attributes:
        request: as it came.
        answers: prompt after prompt, ``n`` each.
        prefix: of the ids (``chatcmpl``).
        kind, chunk_kind: the values of ``object``.
        shape: makes the writer of the answer at an index.
    """

    request: GenerationRequest
    answers: list[Answer]
    prefix: str
    kind: str
    chunk_kind: str
    shape: Callable[[int], Shape]


async def answer(generator: Generator, job: Job, http_request: Request) -> Response:
    """Run ``job`` and return its response; if the client leaves, what runs is aborted."""
    identity = f"{job.prefix}-{uuid.uuid4().hex}"
    envelope = {"id": identity, "object": job.kind, "created": int(time.time()), "model": job.request.model}
    headers = {"X-Request-Id": identity}
    if job.request.stream:
        return EventStream(_events(generator, job, envelope | {"object": job.chunk_kind}), headers)
    body = await unless_client_leaves(http_request.receive, _collect(generator, job))
    return JSONResponse(envelope | body, headers=headers)


async def _collect(generator: Generator, job: Job) -> dict[str, Any]:
    pieces: list[list[Piece]] = [[] for _ in job.answers]
    async with aclosing(generator.merged(job.answers)) as merged:
        async for index, piece in merged:
            pieces[index].append(piece)
    choices = [{"index": index, **job.shape(index).choice(its)} for index, its in enumerate(pieces)]
    return {"choices": choices, "usage": _usage(job)}


async def _events(generator: Generator, job: Job, envelope: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    options = job.request.stream_options
    wants_usage = options is not None and bool(options.include_usage)
    rest = {"usage": None} if wants_usage else {}
    shapes = [job.shape(index) for index in range(len(job.answers))]
    async with aclosing(generator.merged(job.answers)) as merged:
        async for index, piece in merged:
            for chunk in shapes[index].chunks(piece):
                yield event(envelope | {"choices": [{"index": index, **chunk}]} | rest)
    if wants_usage:
        yield event(envelope | {"choices": [], "usage": _usage(job)})
    yield DONE


def _usage(job: Job) -> dict[str, Any]:
    """Count tokens: each prompt once, however many answers it has."""
    firsts = job.answers[:: job.request.n or 1]
    prompt_tokens = sum(len(answer.submit.prompt) for answer in firsts)
    generated_tokens = sum(answer.generated_tokens for answer in job.answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in firsts)},
    }
