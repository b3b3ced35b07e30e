"""Prepare a Responses body for the engine: as a chat, shortened to the context if the request allows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from wisp_runtime.server.api.chat_prompt import encode_chat, prepare_chat
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.responses.store import Turn, items_of
from wisp_runtime.server.api.responses.stored_items import parsed_items
from wisp_runtime.server.api.responses.translation import Messages, chat_request, messages_of, translated
from wisp_runtime.server.parsing.body import LONG_BODY_BYTES
from wisp_runtime.server.parsing.responses.items import ContentItem
from wisp_runtime.server.parsing.responses.request import ResponsesRequest
from wisp_runtime.server.service import Service

TOO_LONG = "context_length_exceeded"


async def prepared(
    service: Service,
    request: ResponsesRequest,
    former: Sequence[Turn],
    given: Sequence[ContentItem],
    headers: Mapping[str, str],
) -> Choice:
    """Return a request as a choice that can be run.

    Args:
        service: the served model.
        request: body of the request.
        former: turns before it.
        given: its own items, without references.
        headers: headers of the request.

    Raises:
        ApiError: 400 naming a field of ``request``, or the model cannot serve it now.
    """
    messages = await _messages(request, former, given)
    try:
        return await _choice(service, request, messages, headers)
    except ApiError as error:
        cuts = messages.cuts() if request.truncation == "auto" and error.code == TOO_LONG else []
        shortened = await _shortened(service, request, messages, cuts, headers)
        if shortened is None:
            raise
        return shortened


async def counted(
    service: Service, request: ResponsesRequest, former: Sequence[Turn], given: Sequence[ContentItem]
) -> int:
    """Return the number of tokens of the prompt that a request becomes.

    Raises:
        ApiError: as of :func:`prepared`.
    """
    messages = await _messages(request, former, given)
    service.check_name(request.model)
    try:
        conversation = await encode_chat(service, chat_request(request, messages))
    except ApiError as error:
        raise translated(error, messages.places) from error
    return len(conversation.tokens)


async def _messages(
    request: ResponsesRequest, former: Sequence[Turn], given: Sequence[ContentItem]
) -> Messages:
    texts = [text for _, text in items_of(former)]
    is_long = sum(map(len, texts)) > LONG_BODY_BYTES
    context = await asyncio.to_thread(parsed_items, texts) if is_long else parsed_items(texts)
    return messages_of(request, context, given)


async def _choice(
    service: Service, request: ResponsesRequest, messages: Messages, headers: Mapping[str, str]
) -> Choice:
    try:
        (choice,) = await prepare_chat(service, chat_request(request, messages), headers)
    except ApiError as error:
        raise translated(error, messages.places) from error
    return choice


async def _shortened(
    service: Service,
    request: ResponsesRequest,
    messages: Messages,
    cuts: Sequence[int],
    headers: Mapping[str, str],
) -> Choice | None:
    """Return the choice with the fewest messages left out so that it fits; None if it never does."""
    fits, first, end = None, 0, len(cuts)
    while first < end:
        middle = (first + end) // 2
        try:
            fits = await _choice(service, request, messages.without(cuts[middle]), headers)
            end = middle
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            first = middle + 1
    return fits
