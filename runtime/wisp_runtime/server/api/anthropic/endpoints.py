"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.api.anthropic.envelope import Answer
from wisp_runtime.server.api.anthropic.translation import anthropic_names, chat_request
from wisp_runtime.server.api.chat_prompt import prepare_chat, render_chat
from wisp_runtime.server.api.errors import answer_too_long, bad_request
from wisp_runtime.server.api.generation import Generator
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.respond import MAX_KEPT_CHARS
from wisp_runtime.server.http.sse import EventStream, unless_client_leaves
from wisp_runtime.server.parsing.anthropic.requests import CountTokensRequest, MessagesRequest
from wisp_runtime.server.parsing.body import body_limit, read_body
from wisp_runtime.server.parsing.token_requests import MAX_TEXT_CHARS
from wisp_runtime.server.parsing.tools import tool_use
from wisp_runtime.server.service import Service
from wisp_runtime.server.text.tokenizer import ModelTokenizer


async def messages(service: Service, http_request: Request) -> Response:
    """Respond to a conversation.

    The limit of tokens may exceed the context: the answer ends where the context does.
    """
    max_bytes = body_limit(service.info.max_context, service.text.tokenizer.longest_token_chars)
    request = await read_body(http_request, MessagesRequest, max_bytes)
    with anthropic_names():
        chat = chat_request(request, service.text.reasoning)
        (choice,) = await prepare_chat(service, chat, http_request.headers)
    choice.submit = replace(choice.submit, max_tokens=min(choice.submit.max_tokens, request.max_tokens))
    answer = Answer(request, service.config.name, choice)
    if request.stream:
        return EventStream(_events(service.text.generator, answer))
    body = await unless_client_leaves(http_request.receive, _complete(service.text.generator, answer))
    return Response(body, media_type="application/json")


async def count_tokens(service: Service, http_request: Request) -> Response:
    """Respond with the number of a conversation's tokens: its prompt is made as that of an answer."""
    request = await read_body(http_request, CountTokensRequest)
    with anthropic_names():
        chat = chat_request(request, service.text.reasoning)
        service.check_name(chat.model)
        tools = tool_use(chat.tools, chat.tool_choice, is_parallel=chat.parallel_tool_calls)
        text = await render_chat(service, chat, tools)
    if len(text) > MAX_TEXT_CHARS:
        raise bad_request(
            f"The conversation has {len(text)} characters as text; at most {MAX_TEXT_CHARS} are counted.",
            "messages",
        )
    tokens = await service.threads.run(len(text), _count, service.text.tokenizer, text)
    return Response(to_json({"input_tokens": tokens}), media_type="application/json")


def _count(tokenizer: ModelTokenizer, text: str) -> int:
    return len(tokenizer.encode(text, adds_special=False))


async def _complete(generator: Generator, answer: Answer) -> bytes:
    """Return the complete message as JSON text.

    Raises:
        ApiError: the answer is too long to be kept until its end.
    """
    kept_chars = 0
    async with aclosing(generator.merged([answer.choice])) as deltas:
        async for _, delta in deltas:
            kept_chars += answer.add(delta)
            if kept_chars > MAX_KEPT_CHARS:
                raise answer_too_long(MAX_KEPT_CHARS)
    return to_json(answer.complete()).encode()


async def _events(generator: Generator, answer: Answer) -> AsyncGenerator[bytes, None]:
    async with aclosing(generator.merged([answer.choice])) as deltas:
        async for _, delta in deltas:
            if sent := b"".join(answer.events(delta)):
                yield sent
