"""Admission of requests by their keys' limits: an estimate of tokens is reserved, and settled at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wisp_gateway.discovery.key_digests import Key
from wisp_gateway.errors import BadRequest, BodyTooLarge, DeadlineExceeded, GatewayError
from wisp_gateway.inbound import routes
from wisp_gateway.inbound.client import Client
from wisp_gateway.inbound.dialect import Dialect
from wisp_gateway.inbound.request_body import RequestBody
from wisp_gateway.limits.headers import anthropic_headers, openai_headers
from wisp_gateway.limits.limiter import Admission, Limiter
from wisp_names.key_limits import UNLIMITED, KeyLimits

# Typical of text in most languages and tokenizers; the tokens used replace the estimate at the answer's end.
BYTES_PER_TOKEN = 4
RESPONSES = "/v1/responses"
WITHOUT_ANSWER = ("/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank")


def body_limit(of_gateway: int, of_key: int | None) -> tuple[int, BodyTooLarge]:
    """Return the limit in bytes of a body that is to be read, and the error of a longer one."""
    if of_key is not None and of_key < of_gateway:
        return of_key, _over_key_limit(of_key)
    return of_gateway, BodyTooLarge(f"The request body is over {of_gateway} bytes (--max-body-bytes).")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that was let in, and the tokens that it may need.

    Attributes:
        prompt_tokens: estimate of its prompts alone.
        tokens: estimate with its longest answers.
        is_background: True if it goes on without its client.
    """

    admission: Admission
    prompt_tokens: int
    tokens: int
    is_background: bool

    def without_report(self, streamed_tokens: int | None) -> int | None:
        """Return the charge of an answer whose use its pod has not reported; None: what was reserved."""
        if self.is_background:
            return self.tokens
        return None if streamed_tokens is None else self.prompt_tokens + streamed_tokens


def admit(limiter: Limiter, client: Client, key: Key, path: str, body: RequestBody) -> Admitted | None:
    """Let a request in, and set the headers of its answer; None for a key without limits.

    Raises:
        BodyTooLarge, RateLimited: it is over its key's limits.
        BadRequest: its key's limits could not count it.
    """
    limits = key.limits
    if limits == UNLIMITED:
        return None
    if limits.body_bytes is not None and len(body.raw) > limits.body_bytes:
        raise _over_key_limit(limits.body_bytes)
    is_background = path == RESPONSES and body.is_background
    if is_background:
        _check_background(limits, body)
    prompt_tokens, tokens = estimated_tokens(path, body)
    try:
        return Admitted(
            limiter.admit(key.limited_as, limits, tokens), prompt_tokens, tokens, is_background=is_background
        )
    finally:
        quotas = limiter.quotas(key.limited_as, limits)
        is_anthropic = client.dialect is Dialect.ANTHROPIC
        headers = anthropic_headers(quotas, time.time()) if is_anthropic else openai_headers(quotas)
        client.own_headers = [*client.own_headers, *headers]


@contextmanager
def settled(admitted: Admitted | None, client: Client, is_sent: Callable[[], bool]) -> Iterator[None]:
    """Charge a request's tokens to its key when the block ends.

    The pod's report gives their number. Without a report the charge is 0 if the request failed or reached no
    pod. If its client or its deadline ended it, a stream is charged its prompt and each event so far, any
    other answer the estimate; so is a response in the background, which goes on.

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
        if admitted is not None and client.usage is not None:
            admitted.admission.settle(client.usage.prompt_tokens + client.usage.completion_tokens)
        elif admitted is not None:
            is_free = has_failed or client.status >= 400 or not is_sent()
            admitted.admission.settle(0 if is_free else admitted.without_report(client.streamed_tokens))


def _check_background(limits: KeyLimits, body: RequestBody) -> None:
    """Check that limits bound a response in the background, whose end the gateway does not see."""
    if limits.concurrent is not None:
        raise BadRequest(
            "This key has a limit of requests at once (concurrent), which a response in the background would "
            "evade. Leave 'background' out, or ask whoever runs this gateway for a key without that limit.",
            param="background",
        )
    if limits.tokens_per_minute is not None and not body.has_answer_bound:
        raise BadRequest(
            "This key has a limit of tokens (tpm), and a response in the background is charged its longest "
            "answer at once. Set 'max_output_tokens'.",
            param="max_output_tokens",
        )


def _over_key_limit(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is over {limit_bytes} bytes, which this key may send (body). Send less, or ask "
        "whoever runs this gateway for more."
    )


def estimated_tokens(path: str, body: RequestBody) -> tuple[int, int]:
    """Return the tokens that a request may need: those of its prompts, and with its longest answers."""
    prompt = -(-len(body.raw) // BYTES_PER_TOKEN)
    if path in routes.CACHED:
        return prompt, prompt + body.max_answer_tokens
    return (prompt, prompt) if path in WITHOUT_ANSWER else (0, 0)
