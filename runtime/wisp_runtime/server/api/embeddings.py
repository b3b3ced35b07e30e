"""``POST /v1/embeddings``: texts in, vectors out.

Vectors are kept as bytes and become JSON text one by one, while the answer is sent: as text they are three
to five times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from wisp_runtime.engine.transport.messages import Pooling
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.http.sse import unless_client_leaves
from wisp_runtime.server.parsing.body import read_body
from wisp_runtime.server.parsing.pooling_requests import EmbeddingRequest
from wisp_runtime.server.parsing.sampling import priority_of
from wisp_runtime.server.pooling.prompts import PromptEncoder
from wisp_runtime.server.pooling.runs import pool
from wisp_runtime.server.pooling.settings import require_embeddings
from wisp_runtime.server.pooling.vector import as_json, vector_of
from wisp_runtime.server.service import Service

MAX_NUMBERS = 1 << 23  # of all vectors of an answer: 32 MiB
NUMBERS_AT_A_TIME = 1 << 16  # become text in a thread, in some 20 ms


async def embeddings(service: Service, http_request: Request) -> Response:
    """Respond to one request."""
    request = await read_body(http_request, EmbeddingRequest)
    service.check_name(request.model)
    _check(service, request)
    prompts = await encode_inputs(service, request)
    pooling, priority = Pooling(service.pooling.kind), priority_of(http_request.headers)
    work = pool(service, prompts, pooling, priority)
    vectors = await unless_client_leaves(http_request.receive, work)
    parts = _parts(service, request, vectors, sum(map(len, prompts)))
    return StreamingResponse(parts, media_type="application/json")


async def encode_inputs(service: Service, request: EmbeddingRequest) -> list[tuple[int, ...]]:
    """Return the tokens of the inputs of ``request``.

    Raises:
        ApiError: an input is empty, too long, or has tokens that are none of the model's.
    """
    encoder = PromptEncoder(service.text.tokenizer, service.info, request.truncate_prompt_tokens)
    chars = sum(len(text) for text in request.input if isinstance(text, str))
    encode = partial(
        encoder.text,
        param="input",
        adds_special=request.add_special_tokens is not False,
        end_token=service.pooling.end_token,
    )
    return await service.threads.run(chars, lambda: [encode(text) for text in request.input])


def _check(service: Service, request: EmbeddingRequest) -> None:
    require_embeddings(service.pooling)
    hidden = service.info.hidden_size
    if (request.dimensions or 0) > hidden:
        raise bad_request(
            f"'dimensions' is {request.dimensions}; the model's vectors have {hidden} numbers.", "dimensions"
        )
    numbers = len(request.input) * (request.dimensions or hidden)
    if numbers > MAX_NUMBERS:
        raise bad_request(
            f"The answer would have {numbers} numbers; at most {MAX_NUMBERS} are sent. Send fewer inputs, or "
            "set 'dimensions'.",
            "input",
        )


async def _parts(
    service: Service, request: EmbeddingRequest, vectors: list[bytes], tokens: int
) -> AsyncGenerator[bytes, None]:
    """Yield the answer's JSON."""
    width = request.dimensions or service.info.hidden_size
    step = max(1, NUMBERS_AT_A_TIME // max(1, width))
    begin = '{"object":"list","data":['
    for first in range(0, len(vectors), step):
        text = await asyncio.to_thread(_entries, service, request, vectors, first, first + step)
        vectors[first : first + step] = [b""] * len(vectors[first : first + step])
        yield f"{begin}{text}".encode()
        begin = ","
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield f'],"model":{to_json(service.config.name)},"usage":{to_json(usage)}}}'.encode()


def _entries(service: Service, request: EmbeddingRequest, vectors: list[bytes], first: int, end: int) -> str:
    normalises = service.pooling.normalises if request.normalize is None else request.normalize
    is_base64 = request.encoding_format == "base64"
    entries = []
    for index, data in enumerate(vectors[first:end], first):
        vector = vector_of(data, dimensions=request.dimensions, normalises=normalises)
        numbers = as_json(vector, is_base64=is_base64)
        entries.append(f'{{"object":"embedding","index":{index},"embedding":{numbers}}}')
    return ",".join(entries)
