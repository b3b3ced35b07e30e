"""Errors in the format of the OpenAI API.

One exception, and one constructor for each kind of refusal that several endpoints share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

QUEUE_RETRY_S = 5
"""Seconds after which a request that found the queue full, or waited in it for too long, may be sent
again."""
MAX_SCORES = 1 << 19
"""Log-probabilities of a request's prompts, alternatives included: 60 MB while they are kept."""
MAX_MESSAGE_CHARS = 1000  # messages repeat names that the sender chose
MAX_PARAM_CHARS = 200


class ApiError(Exception):
    """A response other than 200.

    Args:
        status: HTTP status code.
        message: sentence that names the error, its place and the remedy.
        param: the request's field that is to blame, dotted (``messages.0.content``).
        code: a word for programs (``context_length_exceeded``).
        headers: further headers of the response (``Retry-After``).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _shortened(message, MAX_MESSAGE_CHARS)
        self.param = param and _shortened(param, MAX_PARAM_CHARS)
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON body: ``{"error": {message, type, param, code}}``."""
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        kind = "rate_limit_error" if self.status == HTTPStatus.TOO_MANY_REQUESTS else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request cannot be served as it is."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code=code)


def unsupported(param: str, instead: str, code: str = "unsupported_parameter") -> ApiError:
    """The request asks for something that would change the output and is not implemented."""
    return bad_request(f"{param} is not supported here. {instead}", param, code)


def unknown_model(requested: str, served: Sequence[str]) -> ApiError:
    """The request names another model than the one served, which has the names ``served``."""
    requested, names = _shortened(requested, MAX_PARAM_CHARS), ", also called ".join(map(repr, served))
    message = f"The model {requested!r} does not exist here; this server serves {names}."
    return ApiError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")


def context_exceeded(prompt_tokens: int, max_tokens: int | None, max_context: int, param: str) -> ApiError:
    """Prompt and completion together exceed the context length."""
    asked, left = f"{prompt_tokens} in the prompt", max_context - prompt_tokens
    if max_tokens is not None:
        asked = f"{prompt_tokens + max_tokens} ({asked}, {max_tokens} in the completion)"
    remedy = f"Ask for at most {left} in the completion, or shorten the prompt."
    if left < 1:
        excess = (max_tokens or 1) - left
        remedy = f"Shorten the prompt by at least {excess}: fewer in the completion would not do."
    return bad_request(
        f"This model's maximum context length is {max_context} tokens, and the request needs {asked}"
        f"{'' if max_tokens is not None else ' and at least 1 for the completion'}. {remedy}",
        param,
        "context_length_exceeded",
    )


def pooled_prompt_too_long(prompt_tokens: int, max_context: int, param: str) -> ApiError:
    """A prompt that nothing is generated after exceeds the context length."""
    return bad_request(
        f"This model's maximum context length is {max_context} tokens, and a text has {prompt_tokens}. "
        "Shorten it, or set 'truncate_prompt_tokens' to -1.",
        param,
        "context_length_exceeded",
    )


def beginning_too_long(tokens: int, max_context: int, param: str) -> ApiError:
    """The beginning of the prompt alone exceeds the context; the rest was not tokenized.

    Args:
        tokens: tokens of the beginning.
        max_context: context length in tokens.
        param: field of the request with the prompt.
    """
    return bad_request(
        f"This model's maximum context length is {max_context} tokens, and the prompt has more than "
        f"{tokens}: only its beginning was counted. Shorten the prompt.",
        param,
        "context_length_exceeded",
    )


def text_too_long(chars: int, max_chars: int, max_context: int, param: str) -> ApiError:
    """The text exceeds the context whatever its tokens are."""
    return bad_request(
        f"This model's maximum context length is {max_context} tokens, which are {max_chars} characters at "
        f"the very most, and the prompt has {chars}. Shorten the prompt.",
        param,
        "context_length_exceeded",
    )


def answer_too_long(max_chars: int) -> ApiError:
    """The answer would fill the server's memory before it is sent."""
    return bad_request(
        f"The answer has more than {max_chars} characters, log-probabilities included. Set stream to true, "
        "or ask for fewer choices, tokens or log-probabilities.",
        code="answer_too_long",
    )


def check_scores(tokens: int, alternatives: int, param: str) -> None:
    """Refuse reports of prompts that would fill the server's memory.

    Args:
        tokens: tokens of all prompts.
        alternatives: alternatives of each.
        param: field that asks for them.

    Raises:
        ApiError: they are too many.
    """
    if (entries := tokens * (1 + alternatives)) > MAX_SCORES:
        raise bad_request(
            f"{param!r} asks for {entries} log-probabilities of prompts, {1 + alternatives} of each token; "
            f"at most {MAX_SCORES} are reported. Send several requests, or ask for fewer alternatives.",
            param,
            "too_many_logprobs",
        )


def reads_too_slowly() -> ApiError:
    """The client takes fewer tokens than its choices generate; the rest would fill the server's memory."""
    return bad_request(
        "The client reads more slowly than its choices are generated. Ask for fewer choices, or for fewer "
        "log-probabilities.",
        code="reads_too_slowly",
    )


def unavailable(message: str, code: str, retry_after_s: int) -> ApiError:
    """The request may be retried soon, here or at another replica."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers={"Retry-After": str(retry_after_s)}
    )


def overloaded() -> ApiError:
    """Too many sequences wait already; the request was not begun."""
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "Too many requests wait for the engine already; try again later, or at another replica.",
        code="engine_overloaded",
        headers={"Retry-After": str(QUEUE_RETRY_S)},
    )


def internal_error(error: Exception) -> ApiError:
    """A bug of ours; the log has the traceback, the client only the exception's name."""
    message = f"The server made a mistake ({type(error).__name__}); its log says more."
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="internal_error")


def engine_failed(message: str) -> ApiError:
    """The engine failed while it computed this response."""
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="engine_failed")


def engine_died(message: str) -> ApiError:
    """The engine's process ended under this response, which another pod may give: the gateway tries one."""
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR, message, code="engine_failed", headers={"X-Wisp-Died": "engine"}
    )
