"""Prepare a conversation for the engine: its messages and tools become tokens, its answer gets a parser.

Chat completions, Responses and Anthropic's messages all come here, as a :class:`ChatRequest`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wisp_runtime.engine.transport.messages import Ready
from wisp_runtime.server.api.errors import bad_request, check_scores, unavailable, unsupported
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import PromptReport
from wisp_runtime.server.api.markup import Markup
from wisp_runtime.server.parsing.chat_request import UNREAD_FIELDS, ChatRequest, Message
from wisp_runtime.server.parsing.final_message import marked_final_message, open_final_message
from wisp_runtime.server.parsing.reasoning import Reasoning, reasoning_of
from wisp_runtime.server.parsing.sampling import (
    check_token_ids,
    encode_prompt,
    priority_of,
    resolve_max_tokens,
    sampling_of,
    shown_special_ids,
    stop_tokens_of,
    stops_of,
    submits_of,
)
from wisp_runtime.server.parsing.tools import ToolUse, tool_use
from wisp_runtime.server.parsing.truncation import truncation_of
from wisp_runtime.server.parsing.unsupported import refuse_unsupported
from wisp_runtime.server.service import Service, TextCodec
from wisp_runtime.server.structured.answer import answer_constraint
from wisp_runtime.server.text.call_ids import with_call_ids
from wisp_runtime.server.text.single_calls import with_single_calls
from wisp_runtime.server.text.template_messages import ChatTemplate, TemplateFailed
from wisp_runtime.server.text.template_renderer import RendererBusy, TemplateRenderer
from wisp_runtime.server.text.tokenizer import ModelTokenizer
from wisp_runtime.server.text.tool_prompt import with_described_tools

OWN_NAMES = frozenset({"messages", "tools", "range", "raise_exception", "strftime_now"})
"""Names of a template that callers must not set."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, rendered.

    Attributes:
        text: prompt, up to the start of the assistant's message.
        tokens: its tokens.
        tools: tools that the answer may call.
    """

    text: str
    tokens: list[int]
    tools: ToolUse


async def prepare_chat(service: Service, request: ChatRequest, headers: Mapping[str, str]) -> list[Choice]:
    """Return the choices of the answer to ``request``, ready to be run.

    Raises:
        ApiError: the model cannot serve the request as it is.
    """
    service.check_name(request.model)
    refuse_unsupported(request)
    logprobs = _alternatives(request)
    conversation = await encode_chat(service, request)
    constraint = await answer_constraint(service, request, conversation.tools)
    info, text = service.info, service.text
    max_tokens = resolve_max_tokens(
        len(conversation.tokens), _wanted_tokens(request), info.max_context, "messages"
    )
    sampling = sampling_of(request, logprobs, info, text.defaults, text.tokenizer)
    stop_tokens = stop_tokens_of(request, text.tokenizer, info.vocab_size, text.defaults)
    begun = (request.messages[-1].content or "") if request.continue_final_message else ""
    markup = Markup.of(text, conversation.tools, conversation.text, begun, has_grammar=constraint is not None)
    submits = submits_of(
        conversation.tokens,
        request,
        request.n or 1,
        sampling,
        max_tokens,
        stop_tokens,
        priority_of(headers),
        constraint,
    )
    stops = stops_of(request, text.tokenizer, text.defaults)
    markers = text.tokenizer.special_tokens_among(markup.markers)
    shown_ids = shown_special_ids(request, text.tokenizer) | frozenset(markers)
    budget = _reasoning(service, request).budget_tokens
    rule = markup.thinking_rule(budget, text.tokenizer)
    choices = [
        Choice(replace(submit, thinking=rule), stops, markup.parser(request.repetition_detection), shown_ids)
        for submit in submits
    ]
    choices[0].report = prompt_report(request, conversation.tokens, text)
    return choices


def prompt_report(request: ChatRequest, prompt: list[int], text: TextCodec) -> PromptReport | None:
    """Return the report of vLLM's ``prompt_logprobs``; None without it.

    Raises:
        ApiError: it would be too long.
    """
    if request.prompt_logprobs is None:
        return None
    check_scores(len(prompt), request.prompt_logprobs, "prompt_logprobs")
    names = text.token_names(as_ids=bool(request.return_tokens_as_token_ids))
    return PromptReport(names, prompt, alternatives=request.prompt_logprobs)


def _reasoning(service: Service, request: ChatRequest) -> Reasoning:
    return reasoning_of(
        request.reasoning_effort,
        request.thinking_token_budget,
        request.chat_template_kwargs or {},
        service.text.reasoning,
    )


async def encode_chat(service: Service, request: ChatRequest) -> Conversation:
    """Apply the model's template to the messages and tokenize the result.

    Raises:
        ApiError: errors of :func:`render_chat`, or the messages exceed the context.
    """
    tools = tool_use(request.tools, request.tool_choice, is_parallel=request.parallel_tool_calls)
    text = await render_chat(service, request, tools)
    tokens = await service.threads.run(
        len(text), _encode, service.text.tokenizer, text, service.info, request
    )
    return Conversation(text, tokens, tools)


async def render_chat(service: Service, request: ChatRequest, tools: ToolUse) -> str:
    """Apply the model's template to the messages; return the prompt's text.

    Raises:
        ApiError: the model has no template, or it refuses these messages, or no renderer was free.
    """
    templates = service.text.templates
    if templates is None:
        raise bad_request(
            f"{request.model!r} has no chat template: it is a base model. "
            "Send the whole text to /v1/completions instead.",
            "messages",
            "no_chat_template",
        )
    messages = [_message(message, index) for index, message in enumerate(request.messages)]
    messages = [_with_thinking(message, service.text.reasoning.history_fields) for message in messages]
    messages = _for_template(messages, tools, templates.template)
    names = _names(service, request, tools, templates.template)
    if not request.continue_final_message:
        return await _render(templates, messages, names)
    messages, mark = marked_final_message(messages)
    return open_final_message(await _render(templates, messages, names), mark)


async def _render(templates: TemplateRenderer, messages: list[dict[str, Any]], names: dict[str, Any]) -> str:
    try:
        return await templates.render(messages, names)
    except TemplateFailed as error:
        reason = f"the model's chat template refused these messages: {error}."
        raise bad_request(reason, "messages", "chat_template_failed") from error
    except RendererBusy as error:
        raise unavailable(f"{error}; try again.", "chat_template_busy", 1) from error


def _names(service: Service, request: ChatRequest, tools: ToolUse, template: ChatTemplate) -> dict[str, Any]:
    """Return the names that the template gets besides the messages."""
    names = _reasoning(service, request).names
    if taken := sorted(OWN_NAMES & names.keys()):
        raise bad_request(f"'chat_template_kwargs' cannot set {', '.join(taken)}.", "chat_template_kwargs")
    if request.add_generation_prompt is not None:
        names["add_generation_prompt"] = request.add_generation_prompt
    if request.documents:
        if not template.reads("documents"):
            raise unsupported("documents", "The model's chat template reads none: put them in a message.")
        names["documents"] = request.documents
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise unsupported("continue_final_message", "Beside add_generation_prompt: set one of them.")
        names["add_generation_prompt"] = False
    return {**names, "tools": list(tools.described)} if tools.described else names


def _encode(tokenizer: ModelTokenizer, text: str, info: Ready, request: ChatRequest) -> list[int]:
    tokens = encode_prompt(
        tokenizer,
        text,
        info.max_context,
        "messages",
        adds_special=bool(request.add_special_tokens),
        truncation=truncation_of(request, info.max_context, _wanted_tokens(request)),
    )
    check_token_ids(tokens, info.vocab_size, "messages")
    return tokens


def _message(message: Message, index: int) -> dict[str, Any]:
    """Return a message as templates expect it."""
    if message.content is None and not message.tool_calls:
        raise bad_request("A message needs content.", f"messages.{index}.content", "invalid_value")
    fields = message.model_dump(exclude_none=True, exclude=set(UNREAD_FIELDS))
    fields.setdefault("content", "")
    if thinking := message.reasoning_content or message.reasoning or message.thinking:
        fields["reasoning_content"] = thinking
    if message.tool_calls:
        fields["tool_calls"] = [
            _call(call, f"messages.{index}.tool_calls.{number}")
            for number, call in enumerate(message.tool_calls)
        ]
    return fields


def _call(call: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a call of the history with its arguments as an object, which templates write as JSON."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("A tool call needs a function with a name.", f"{place}.function", "invalid_value")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = function["arguments"]  # as the model wrote it
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _for_template(
    messages: list[dict[str, Any]], tools: ToolUse, template: ChatTemplate
) -> list[dict[str, Any]]:
    """Return the messages in roles that the template knows, with the tools if it does not write them."""
    if "developer" not in template.source:  # the role's earlier name, which templates use
        messages = [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]
    if template.reads("tools"):
        return with_single_calls(with_call_ids(messages, template), template)
    return with_described_tools(messages, tools.described)


def _with_thinking(message: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return a message with its thinking in each of ``fields`` too; harmony's refuses it beside a content."""
    thinking = message.get("reasoning_content")
    if not thinking:
        return message
    return message | {name: thinking for name in fields if not (name == "thinking" and message["content"])}


def _wanted_tokens(request: ChatRequest) -> int | None:
    if request.max_completion_tokens is not None and request.max_tokens is not None:
        raise bad_request("Set 'max_tokens' or 'max_completion_tokens', not both.", "max_tokens")
    return request.max_completion_tokens or request.max_tokens


def _alternatives(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None
