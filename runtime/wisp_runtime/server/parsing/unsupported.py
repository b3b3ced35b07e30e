"""Refusals of fields that contradict one another."""

from __future__ import annotations

from wisp_runtime.server.api.errors import unsupported
from wisp_runtime.server.parsing.generation_request import GenerationRequest


def refuse_unsupported(request: GenerationRequest) -> None:
    """Refuse fields that mean nothing beside the others.

    Raises:
        ApiError: 400, naming the field.
    """
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "It is only for streams: set stream to true.")
    if request.prompt_logprobs is not None and request.stream:
        raise unsupported("prompt_logprobs", "A stream does not report them: leave stream out.")
