"""``POST /v1/chat/completions``: messages in, an assistant's message out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.api.chat_format import ChatFormatter
from wisp_runtime.server.api.chat_prompt import prepare_chat
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.respond import GenerationJob, respond
from wisp_runtime.server.parsing.body import body_limit, read_body
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.service import Service


async def chat_completions(service: Service, http_request: Request) -> Response:
    """Respond to one request."""
    max_bytes = body_limit(service.info.max_context, service.text.tokenizer.longest_token_chars)
    request = await read_body(http_request, ChatRequest, max_bytes)
    choices = await prepare_chat(service, request, http_request.headers)
    names = service.text.token_names(as_ids=bool(request.return_tokens_as_token_ids))
    with_logprobs, with_ids = bool(request.logprobs), bool(request.return_token_ids)
    with_thinking = request.include_reasoning is not False
    job = GenerationJob(
        request=request,
        model=service.config.name,
        choices=choices,
        prefix="chatcmpl",
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
        formatter=lambda index: ChatFormatter(
            index,
            names,
            with_logprobs=with_logprobs,
            with_token_ids=with_ids,
            with_thinking=with_thinking,
        ),
        choices_per_prompt=len(choices),
        extra={"prompt_token_ids": choices[0].submit.prompt} if with_ids else {},
        tail=lambda: _prompt_logprobs(choices[0]),
    )
    return await respond(service.text.generator, job, http_request)


def _prompt_logprobs(choice: Choice) -> str:
    return "" if choice.report is None else f',"prompt_logprobs":{choice.report.text()}'
