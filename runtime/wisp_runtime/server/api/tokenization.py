"""``POST /tokenize`` and ``/detokenize``: texts and chats to token ids and back.

Fields and answers are vLLM's; a text named ``content`` and an answer's ``content`` are llama.cpp's.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.api.chat_prompt import render_chat
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.parsing.body import read_body
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.refusals import Refusal
from wisp_runtime.server.parsing.sampling import SAMPLE_TOKEN_CHARS, check_token_ids
from wisp_runtime.server.parsing.token_requests import (
    MAX_TEXT_CHARS,
    OF_MESSAGES,
    DetokenizeRequest,
    TokenizeRequest,
)
from wisp_runtime.server.parsing.tools import tool_use
from wisp_runtime.server.service import Service
from wisp_runtime.server.text.tokenizer import ModelTokenizer

REFUSED = {
    "parse_special": Refusal(
        (True,), "Special tokens written in a text are those tokens; strip them from it."
    ),
    "chat_template": Refusal((), "The model's own chat template is used."),
    "mm_processor_kwargs": Refusal(({},), "Models here read text only."),
}


async def tokenize(service: Service, http_request: Request) -> Response:
    """Respond with the tokens of a text or of a chat."""
    request = await read_body(http_request, TokenizeRequest)
    if request.model is not None:
        service.check_name(request.model)
    for name, refusal in REFUSED.items():
        refusal.check(name, getattr(request, name))
    text, adds_special = await _text_of(service, request)
    if len(text) > MAX_TEXT_CHARS:
        raise bad_request(
            f"The chat has {len(text)} characters as text; at most {MAX_TEXT_CHARS} are tokenized.",
            "messages",
        )
    tokenizer, max_context = service.text.tokenizer, service.info.max_context
    body = await service.threads.run(
        len(text), _tokenized, tokenizer, text, adds_special, request, max_context
    )
    return Response(body, media_type="application/json")


async def detokenize(service: Service, http_request: Request) -> Response:
    """Respond with the text of tokens."""
    request = await read_body(http_request, DetokenizeRequest)
    if request.model is not None:
        service.check_name(request.model)
    tokenizer = service.text.tokenizer
    check_token_ids(request.tokens, max(service.info.vocab_size, tokenizer.largest_id + 1), "tokens")
    chars = len(request.tokens) * SAMPLE_TOKEN_CHARS
    text = await service.threads.run(chars, tokenizer.decode, request.tokens)
    return Response(to_json({"prompt": text, "content": text}).encode(), media_type="application/json")


async def _text_of(service: Service, request: TokenizeRequest) -> tuple[str, bool]:
    """Return the text to tokenize, and whether the model's own special tokens are put around it."""
    if request.content is not None:
        return request.content, bool(request.add_special)
    if request.prompt is not None:
        return request.prompt, request.add_special_tokens is not False
    fields = {name: getattr(request, name) for name in OF_MESSAGES}
    chat = ChatRequest(model=service.config.name, messages=request.messages or [], **fields)
    tools = tool_use(chat.tools, chat.tool_choice, is_parallel=None)
    return await render_chat(service, chat, tools), bool(request.add_special_tokens)


def _tokenized(
    tokenizer: ModelTokenizer, text: str, adds_special: bool, request: TokenizeRequest, max_context: int
) -> bytes:
    """Return the answer's JSON."""
    tokens = tokenizer.encode(text, adds_special=adds_special)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": max_context, "tokens": tokens}
    if request.with_pieces:
        answer["tokens"] = [
            {"id": token, "piece": _text_or_bytes(tokenizer.token_bytes(token))} for token in tokens
        ]
    answer["token_strs"] = tokenizer.names_of(tokens) if request.return_token_strs else None
    return to_json(answer).encode()


def _text_or_bytes(data: bytes) -> str | list[int]:
    """Return a token's text, or its bytes if they are only a part of a character."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
