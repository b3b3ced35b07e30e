"""``POST /v1/score`` and ``/v1/rerank``: how well texts match, and documents in the order in which they do.

A reranker answers "yes" or "no" for each pair, and a score is the probability of "yes" among the two. Of any
other model it is the cosine of both embeddings.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.engine.transport.messages import Pooling
from wisp_runtime.server.api.errors import bad_request, unsupported
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.http.sse import unless_client_leaves
from wisp_runtime.server.parsing.body import read_body
from wisp_runtime.server.parsing.pooling_requests import RerankRequest, ScoreRequest
from wisp_runtime.server.parsing.sampling import priority_of
from wisp_runtime.server.pooling.prompts import PromptEncoder
from wisp_runtime.server.pooling.runs import pool
from wisp_runtime.server.pooling.settings import require_embeddings
from wisp_runtime.server.pooling.vector import cosine, share_of_second, vector_of
from wisp_runtime.server.service import Service

MAX_TOKENS = 1 << 21
"""Tokens of all pairs of a request."""
COHERE = "/v2/rerank"  # answers without the documents, unless they are asked for

Texts = list[str]
Scores = tuple[list[float], int]
"""Scores of pairs, and the number of tokens that they took."""


async def score(service: Service, http_request: Request) -> Response:
    """Respond with the scores of pairs of texts."""
    request = await read_body(http_request, ScoreRequest)
    service.check_name(request.model)
    first, second = request.sides()
    priority = priority_of(http_request.headers)
    work = _scores(service, request, first, second, priority)
    scores, tokens = await unless_client_leaves(http_request.receive, work)
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
    answer = {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": service.config.name,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Response(to_json(answer).encode(), media_type="application/json")


async def rerank(service: Service, http_request: Request) -> Response:
    """Respond with the documents that match a query best, best first."""
    request = await read_body(http_request, RerankRequest)
    service.check_name(request.model)
    priority, documents = priority_of(http_request.headers), request.texts()
    work = _scores(service, request, [request.query], documents, priority)
    scores, tokens = await unless_client_leaves(http_request.receive, work)
    shows_documents = request.return_documents
    if shows_documents is None:
        shows_documents = http_request.url.path != COHERE
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n or None]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": documents[index]}} if shows_documents else {})
        for index in best
    ]
    answer = {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": service.config.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results,
    }
    return Response(to_json(answer).encode(), media_type="application/json")


async def _scores(
    service: Service, request: ScoreRequest | RerankRequest, first: Texts, second: Texts, priority: int
) -> Scores:
    """Return the score of each text of ``second`` beside its one of ``first``, or beside the only one."""
    encoder = PromptEncoder(service.text.tokenizer, service.info, request.truncate_prompt_tokens)
    if isinstance(request, RerankRequest) and request.max_tokens_per_doc is not None:
        shorten = partial(encoder.beginning, max_tokens=request.max_tokens_per_doc)
        second = await service.threads.run(_chars(second), lambda: [shorten(text) for text in second])
    if (verdicts := service.pooling.verdicts) is not None:
        return await _judged(service, encoder, request, first, second, verdicts, priority)
    if request.instruction is not None:
        raise unsupported("instruction", "This model is no reranker; write the instruction before the query.")
    require_embeddings(service.pooling)
    return await _compared(service, encoder, request, first, second, priority)


async def _judged(
    service: Service,
    encoder: PromptEncoder,
    request: ScoreRequest | RerankRequest,
    first: Texts,
    second: Texts,
    verdicts: tuple[int, int],
    priority: int,
) -> Scores:
    """Have the model judge each pair; the prompts' common beginning is found in the prefix cache."""
    queries = first if len(first) > 1 else first * len(second)
    pairs, name = list(zip(queries, second, strict=True)), request.names()[1]
    prompts = await service.threads.run(
        _chars(queries) + _chars(second),
        lambda: _bounded(encoder.judged(query, text, request.instruction, name) for query, text in pairs),
    )
    pooling = Pooling("logits", verdicts)
    logits = await pool(service, prompts, pooling, priority, shares_prefixes=True)
    scores = [share_of_second(vector_of(data, normalises=False)) for data in logits]
    return scores, sum(map(len, prompts))


async def _compared(
    service: Service,
    encoder: PromptEncoder,
    request: ScoreRequest | RerankRequest,
    first: Texts,
    second: Texts,
    priority: int,
) -> Scores:
    """Compare the embeddings of each pair."""
    encode = partial(encoder.text, adds_special=True, end_token=service.pooling.end_token)
    texts = [
        (text, name) for name, side in zip(request.names(), (first, second), strict=True) for text in side
    ]
    prompts = await service.threads.run(
        _chars(first) + _chars(second), lambda: [encode(text, param) for text, param in texts]
    )
    data = await pool(service, prompts, Pooling(service.pooling.kind), priority)
    vectors = [vector_of(numbers, normalises=False) for numbers in data]
    queries, others = vectors[: len(first)], vectors[len(first) :]
    queries = queries if len(first) > 1 else queries * len(others)
    pairs = list(zip(queries, others, strict=True))
    scores = await asyncio.to_thread(lambda: [cosine(query, other) for query, other in pairs])
    return scores, sum(map(len, prompts))


def _bounded(prompts: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return prompts of :data:`MAX_TOKENS` tokens at most: a query is in each of its pairs."""
    kept, tokens = list[tuple[int, ...]](), 0
    for prompt in prompts:
        kept.append(prompt)
        tokens += len(prompt)
        if tokens > MAX_TOKENS:
            raise bad_request(
                f"The query and each of the documents are more than {MAX_TOKENS} tokens together. Send fewer "
                "documents at a time.",
                "documents",
            )
    return kept


def _chars(texts: Texts) -> int:
    return sum(map(len, texts))
