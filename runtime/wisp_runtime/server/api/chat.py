"""``POST /v1/chat/completions``: messages in, an assistant's message out."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.engine.transport.messages import Ready
from wisp_runtime.server.api.errors import bad_request, unavailable
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import TokenNames, chat_entry, to_json
from wisp_runtime.server.api.respond import GenerationJob, respond
from wisp_runtime.server.parsing.body import body_limit, read_body
from wisp_runtime.server.parsing.chat_request import ChatRequest, Message
from wisp_runtime.server.parsing.sampling import (
    check_token_ids,
    encode_prompt,
    priority_of,
    resolve_max_tokens,
    sampling_of,
    stop_tokens_of,
    submits_of,
)
from wisp_runtime.server.parsing.unsupported import refuse_unsupported
from wisp_runtime.server.service import Service
from wisp_runtime.server.text.deltas import TextDelta
from wisp_runtime.server.text.stop import StopStrings
from wisp_runtime.server.text.template_messages import ChatTemplate, TemplateFailed
from wisp_runtime.server.text.template_renderer import RendererBusy, TemplateRenderer
from wisp_runtime.server.text.tokenizer import ModelTokenizer

OWN_NAMES = frozenset({"messages", "range", "raise_exception", "strftime_now"})  # callers must not set these


async def chat_completions(service: Service, http_request: Request) -> Response:
    """Respond to one request."""
    tokenizer, info = service.text.tokenizer, service.info
    max_bytes = body_limit(info.max_context, tokenizer.longest_token_chars)
    request = await read_body(http_request, ChatRequest, max_bytes)
    service.check_name(request.model)
    refuse_unsupported(request)
    logprobs = _alternatives(request)
    text = await render_chat(service.text.templates, request)
    prompt = await service.threads.run(len(text), _encode, tokenizer, text, info)
    max_tokens = resolve_max_tokens(len(prompt), _wanted_tokens(request), info.max_context, "messages")
    sampling = sampling_of(request, logprobs, info, service.text.defaults)
    stop_tokens = stop_tokens_of(request, tokenizer, info.vocab_size, service.text.defaults)
    submits = submits_of(
        prompt, request, sampling, max_tokens, stop_tokens, priority_of(http_request.headers)
    )
    stops = StopStrings(request.stop or ())
    job = GenerationJob(
        request=request,
        model=service.config.name,
        choices=[Choice(submit, stops) for submit in submits],
        prefix="chatcmpl",
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
        formatter=lambda index: ChatFormatter(index, service.text.names, with_logprobs=logprobs is not None),
    )
    return await respond(service.text.generator, job, http_request)


async def render_chat(templates: TemplateRenderer | None, request: ChatRequest) -> str:
    """Apply the model's template to the messages and return the prompt's text.

    Raises:
        ApiError: the model has no template, or it refuses these messages, or no renderer was free.
    """
    if templates is None:
        raise bad_request(
            f"{request.model!r} has no chat template: it is a base model. "
            "Send the whole text to /v1/completions instead.",
            "messages",
            "no_chat_template",
        )
    names = request.chat_template_kwargs or {}
    if taken := sorted(OWN_NAMES & names.keys()):
        raise bad_request(f"'chat_template_kwargs' cannot set {', '.join(taken)}.", "chat_template_kwargs")
    template = templates.template
    messages = [_message(message, index, template) for index, message in enumerate(request.messages)]
    try:
        return await templates.render(messages, names)
    except TemplateFailed as error:
        reason = f"the model's chat template refused these messages: {error}."
        raise bad_request(reason, "messages", "chat_template_failed") from error
    except RendererBusy as error:
        raise unavailable(f"{error}; try again.", "chat_template_busy", 1) from error


def _encode(tokenizer: ModelTokenizer, text: str, info: Ready) -> list[int]:
    tokens = encode_prompt(tokenizer, text, info.max_context, "messages", adds_special=False)
    check_token_ids(tokens, info.vocab_size, "messages")
    return tokens


def _message(message: Message, index: int, template: ChatTemplate) -> dict[str, Any]:
    """Return a message as templates expect it; refuse tool calls that the template cannot write."""
    if message.content is None and not message.tool_calls:
        raise bad_request("A message needs content.", f"messages.{index}.content", "invalid_value")
    if message.tool_calls and "tool_calls" not in template.source:
        raise bad_request(
            "The model's chat template cannot write tool calls.",
            f"messages.{index}.tool_calls",
            "unsupported_parameter",
        )
    fields = message.model_dump(exclude_none=True, exclude={"refusal", "annotations"})
    fields.setdefault("content", "")
    if message.role == "developer" and "developer" not in template.source:
        fields["role"] = "system"  # the role's earlier name, which templates use
    return fields


def _wanted_tokens(request: ChatRequest) -> int | None:
    if request.max_completion_tokens is not None and request.max_tokens is not None:
        raise bad_request("Set 'max_tokens' or 'max_completion_tokens', not both.", "max_tokens")
    return request.max_completion_tokens or request.max_tokens


def _alternatives(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


class ChatFormatter:
    """One choice of a chat completion."""

    def __init__(self, index: int, names: TokenNames, *, with_logprobs: bool) -> None:
        self._index = index
        self._names = names
        self._with_logprobs = with_logprobs
        self._has_begun = False
        self._texts: list[str] = []
        self._entries: list[str] = []
        self._finish: str | None = None

    def chunks(self, delta: TextDelta) -> list[str]:
        """Return a first delta with the role, then deltas of text, then an empty one with the reason."""
        chunks = [] if self._has_begun else [self._chunk({"role": "assistant", "content": ""})]
        self._has_begun = True
        entry = self._entry(delta)
        if delta.text or entry:
            chunks.append(self._chunk({"content": delta.text}, entry))
        if delta.finish is not None:
            chunks.append(self._chunk({}, finish=delta.finish))
        return chunks

    def add(self, delta: TextDelta) -> int:
        """Keep a delta for the complete message; return the characters that are kept."""
        self._texts.append(delta.text)
        self._finish = delta.finish
        entry = self._entry(delta)
        if entry is not None:
            self._entries.append(entry)
        return len(delta.text) + len(entry or "")

    def choice(self) -> str:
        """Return the complete message."""
        message = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        content = ",".join(self._entries)
        logprobs = f'{{"content":[{content}],"refusal":null}}' if self._with_logprobs else "null"
        return (
            f'{{"index":{self._index},"message":{to_json(message)},"logprobs":{logprobs},'
            f'"finish_reason":{to_json(self._finish)}}}'
        )

    def _entry(self, delta: TextDelta) -> str | None:
        return chat_entry(self._names, delta) if self._with_logprobs else None

    def _chunk(self, content: dict[str, Any], entry: str | None = None, finish: str | None = None) -> str:
        logprobs = f'{{"content":[{entry}],"refusal":null}}' if entry else "null"
        return (
            f'{{"index":{self._index},"delta":{to_json(content)},"logprobs":{logprobs},'
            f'"finish_reason":{to_json(finish)}}}'
        )
