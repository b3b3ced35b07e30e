"""Admission of requests by their keys' limits: an estimate of tokens is reserved, and settled at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wisp_gateway.discovery.key_digests import Key
from wisp_gateway.errors import BodyTooLarge, DeadlineExceeded, GatewayError
from wisp_gateway.inbound import routes
from wisp_gateway.inbound.client import Client
from wisp_gateway.inbound.dialect import Dialect
from wisp_gateway.inbound.request_body import RequestBody
from wisp_gateway.limits.headers import anthropic_headers, openai_headers
from wisp_gateway.limits.key_limits import UNLIMITED
from wisp_gateway.limits.limiter import Admission, Limiter

# Typical of text in most languages and tokenizers; the tokens used replace the estimate at the answer's end.
BYTES_PER_TOKEN = 4
WITHOUT_ANSWER = ("/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank")


def body_limit(of_gateway: int, of_key: int | None) -> tuple[int, BodyTooLarge]:
    """Return the limit in bytes of a body that is to be read, and the error of a longer one."""
    if of_key is not None and of_key < of_gateway:
        return of_key, _over_key_limit(of_key)
    return of_gateway, BodyTooLarge(f"The request body is over {of_gateway} bytes (--max-body-bytes).")


def admit(limiter: Limiter, client: Client, key: Key, path: str, body: RequestBody) -> Admission | None:
    """Let a request in, and set the headers of its answer; None for a key without limits.

    Raises:
        BodyTooLarge, RateLimited: it is over its key's limits.
    """
    limits = key.limits
    if limits == UNLIMITED:
        return None
    if limits.body_bytes is not None and len(body.raw) > limits.body_bytes:
        raise _over_key_limit(limits.body_bytes)
    try:
        return limiter.admit(key.limited_as, limits, estimated_tokens(path, body))
    finally:
        quotas = limiter.quotas(key.limited_as, limits)
        is_anthropic = client.dialect is Dialect.ANTHROPIC
        headers = anthropic_headers(quotas, time.time()) if is_anthropic else openai_headers(quotas)
        client.own_headers = [*client.own_headers, *headers]


@contextmanager
def settled(admission: Admission | None, client: Client, is_sent: Callable[[], bool]) -> Iterator[None]:
    """Charge a request's tokens to its key when the block ends.

    The pod's report gives their number. Without a report the charge is 0 if the request failed or reached no
    pod, and the estimate if its client or its deadline ended it.

    Args:
        is_sent: whether the request has reached a pod.
    """
    has_failed = False
    try:
        yield
    except GatewayError as error:
        has_failed = not isinstance(error, DeadlineExceeded)
        raise
    finally:
        if admission is not None and client.usage is not None:
            admission.settle(client.usage.prompt_tokens + client.usage.completion_tokens)
        elif admission is not None:
            admission.settle(0 if has_failed or client.status >= 400 or not is_sent() else None)


def _over_key_limit(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is over {limit_bytes} bytes, which this key may send (body). Send less, or ask "
        "whoever runs this gateway for more."
    )


def estimated_tokens(path: str, body: RequestBody) -> int:
    """Return the tokens that a request may need: those of its prompt, and its longest answers."""
    prompt = -(-len(body.raw) // BYTES_PER_TOKEN)
    if path in routes.CACHED:
        return prompt + body.max_answer_tokens
    return prompt if path in WITHOUT_ANSWER else 0
