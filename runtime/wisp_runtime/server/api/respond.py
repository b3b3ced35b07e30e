"""Run a tokenized request and respond: with one JSON object, or with a stream of chunks.

Chat and plain completions differ in their JSON only; each brings a :class:`ResponseFormatter`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.errors import answer_too_long
from wisp_runtime.server.api.generation import Choice, Generator
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.http.sse import DONE, EventStream, event, text_event, unless_client_leaves
from wisp_runtime.server.parsing.generation_request import GenerationRequest

MAX_KEPT_CHARS = 32 << 20  # characters of an answer that is not streamed: 16,000 tokens with 20 alternatives


class ResponseFormatter(Protocol):
    """Writer of one choice's JSON text; keeps state from delta to delta."""

    def chunks(self, delta: AnswerDelta) -> list[str]:
        """Return the choices of the stream's next chunks for ``delta``; maybe none."""
        ...

    def add(self, delta: AnswerDelta) -> int:
        """Keep a delta for the complete choice; return the characters that are kept."""
        ...

    def choice(self, index: int) -> str:
        """Return the complete choice, of the deltas added, as number ``index`` of the response."""
        ...


@dataclass(frozen=True)
class GenerationJob:
    """A tokenized request.

    Attributes:
        request: the parsed body.
        model: name of the model in the response, whichever the request used.
        choices: one per prompt and ``n``, prompt after prompt.
        prefix: request-id prefix (``chatcmpl``).
        kind, chunk_kind: values of ``object``.
        formatter: factory of a choice's formatter, by its index.
        choices_per_prompt: choices of each prompt; the best ``n`` of them are returned.
        extra: further fields of the response; in a stream, of its first chunk.
        tail: JSON text of further fields of a complete response, after its usage (``,"name":value``).
    """

    request: GenerationRequest
    model: str
    choices: list[Choice]
    prefix: str
    kind: str
    chunk_kind: str
    formatter: Callable[[int], ResponseFormatter]
    choices_per_prompt: int = 1
    extra: dict[str, Any] = field(default_factory=dict)
    tail: Callable[[], str] = str


async def respond(generator: Generator, job: GenerationJob, http_request: Request) -> Response:
    """Run ``job`` and return its response; abort its sequences if the client disconnects."""
    identity = f"{job.prefix}-{job.request.request_id or uuid.uuid4().hex}"
    envelope = {"id": identity, "object": job.kind, "created": int(time.time()), "model": job.model}
    if job.request.stream:
        return EventStream(_events(generator, job, envelope | {"object": job.chunk_kind}))
    choices = await unless_client_leaves(http_request.receive, _collect(generator, job))
    envelope |= job.extra
    body = f'{to_json(envelope)[:-1]},"choices":[{choices}],"usage":{to_json(_usage(job))}{job.tail()}}}'
    return Response(body.encode(), media_type="application/json")


async def _collect(generator: Generator, job: GenerationJob) -> str:
    """Return the complete choices as JSON text.

    Raises:
        ApiError: the answer is too long to be kept until its end.
    """
    formatters = [job.formatter(index) for index in range(len(job.choices))]
    kept_chars = 0
    async with aclosing(generator.merged(job.choices)) as merged:
        async for index, delta in merged:
            kept_chars += formatters[index].add(delta)
            if kept_chars > MAX_KEPT_CHARS:
                raise answer_too_long(MAX_KEPT_CHARS)
    return ",".join([formatters[place].choice(index) for index, place in enumerate(best_places(job))])


def best_places(job: GenerationJob) -> list[int]:
    """Return the places of the choices that are returned: of each prompt the ``n`` most likely, best first.

    Likely is meant per token, by the mean of log-probabilities.
    """
    returned, per_prompt = job.request.n or 1, job.choices_per_prompt
    places = range(len(job.choices))
    if returned == per_prompt:
        return list(places)
    prompts = [places[first : first + per_prompt] for first in places[::per_prompt]]
    ranked = [sorted(of_one, key=lambda place: -job.choices[place].mean_logprob) for of_one in prompts]
    return [place for of_one in ranked for place in of_one[:returned]]


async def _events(
    generator: Generator, job: GenerationJob, envelope: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    options = job.request.stream_options
    wants_usage = options is not None and bool(options.include_usage)
    counts_always = options is not None and bool(options.continuous_usage_stats)
    begin, end = f'{to_json(envelope)[:-1]},"choices":[', '],"usage":null}' if wants_usage else "]}"
    first = f'{to_json(envelope | job.extra)[:-1]},"choices":['
    formatters = [job.formatter(index) for index in range(len(job.choices))]
    async with aclosing(generator.merged(job.choices)) as merged:
        async for index, delta in merged:
            for chunk in formatters[index].chunks(delta):
                if counts_always:
                    end = f'],"usage":{to_json(_usage(job))}}}'
                yield text_event(f"{first or begin}{chunk}{end}")
                first = ""
    if wants_usage:
        yield event(envelope | {"choices": [], "usage": _usage(job)})
    yield DONE


def _usage(job: GenerationJob) -> dict[str, Any]:
    """Count tokens: each prompt once, however many choices it has."""
    firsts = job.choices[:: job.choices_per_prompt]
    prompt_tokens = sum(len(choice.submit.prompt) for choice in firsts)
    generated_tokens = sum(choice.generated_tokens for choice in job.choices)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in firsts)},
    }
    thinking = [choice.parser.thinking_tokens for choice in job.choices]
    if any(tokens is not None for tokens in thinking):
        usage["completion_tokens_details"] = {"reasoning_tokens": sum(tokens or 0 for tokens in thinking)}
    return usage


def stop_reason(stop: str | int | None) -> str:
    """Return vLLM's field for what ended a choice, as JSON text behind another field; without one nothing."""
    return "" if stop is None else f',"stop_reason":{to_json(stop)}'
