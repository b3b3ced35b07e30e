"""``POST /v1/completions``: prompts in, their continuations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.engine.transport.messages import Ready
from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.api.completion_format import CompletionFormatter
from wisp_runtime.server.api.errors import answer_too_long, bad_request, check_scores, unsupported
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import PromptReport, TokenNames
from wisp_runtime.server.api.respond import MAX_KEPT_CHARS, GenerationJob, respond
from wisp_runtime.server.parsing.body import read_body
from wisp_runtime.server.parsing.completion_request import MAX_PROMPTS, CompletionRequest
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
from wisp_runtime.server.parsing.truncation import truncation_of
from wisp_runtime.server.parsing.unsupported import refuse_unsupported
from wisp_runtime.server.service import Service
from wisp_runtime.server.text.detokenizer import token_offsets
from wisp_runtime.server.text.tokenizer import ModelTokenizer

MAX_ID_CHARS = 8  # of a token id in JSON, with its comma
DEFAULT_MAX_TOKENS = 16  # the API's own


async def completions(service: Service, http_request: Request) -> Response:
    """Respond to one request."""
    request = await read_body(http_request, CompletionRequest)
    service.check_name(request.model)
    _refuse(request)
    constraint = await service.grammars.constraint_of(request)
    tokenizer = service.text.tokenizer
    chars = sum(map(len, request.prompt))
    prompts = await service.threads.run(chars, _encode_prompts, tokenizer, request, service.info)
    echoes = await service.threads.run(chars, _echoes, tokenizer, request, prompts)
    _check_repeated(request, prompts, echoes)
    choices = _choices(prompts, request, service, priority_of(http_request.headers), constraint)
    names = service.text.token_names(as_ids=bool(request.return_tokens_as_token_ids))
    of_prompt = _choices_of_prompt(request)
    for index, choice in enumerate(choices):
        echo, scores_prompt = echoes[index // of_prompt], choice.submit.sampling.prompt_logprobs is not None
        choice.report = _report(request, choice.submit.prompt, echo, names) if scores_prompt else None
    job = GenerationJob(
        request=request,
        model=service.config.name,
        choices=choices,
        prefix="cmpl",
        kind="text_completion",
        chunk_kind="text_completion",
        formatter=lambda index: CompletionFormatter(
            index,
            names,
            echoes[index // of_prompt].text,
            with_logprobs=request.logprobs is not None,
            report=choices[index if request.stream else index // of_prompt * of_prompt].report,
            prompt_ids=choices[index].submit.prompt if request.return_token_ids else None,
        ),
        choices_per_prompt=of_prompt,
    )
    return await respond(service.text.generator, job, http_request)


def _check_repeated(request: CompletionRequest, prompts: list[list[int]], echoes: list[Echo]) -> None:
    """Refuse an answer whose choices repeat more of their prompts than the server keeps.

    Raises:
        ApiError: the prompts are too long for so many choices.
    """
    ids = sum(map(len, prompts)) * MAX_ID_CHARS if request.return_token_ids else 0
    if (request.n or 1) * (ids + sum(len(echo.text) for echo in echoes)) > MAX_KEPT_CHARS:
        raise answer_too_long(MAX_KEPT_CHARS)


def _choices_of_prompt(request: CompletionRequest) -> int:
    """Return how many choices are generated for each prompt."""
    return max(request.n or 1, request.best_of or 1)


def _refuse(request: CompletionRequest) -> None:
    refuse_unsupported(request)
    returned = request.n or 1
    if request.best_of is not None and request.best_of < returned:
        raise bad_request(
            f"'best_of' is {request.best_of} and 'n' {returned}: no fewer choices can be generated than are "
            "returned. Raise best_of, or leave it out.",
            "best_of",
            "invalid_value",
        )
    if request.stream and _choices_of_prompt(request) > returned:
        raise unsupported("best_of", "In a stream the best cannot be known before the end: leave one out.")
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        raise bad_request(
            "'max_tokens' is 0: nothing is generated, and nothing of the prompt reported. Set echo or "
            "prompt_logprobs, or ask for at least 1.",
            "max_tokens",
            "invalid_value",
        )
    if len(request.prompt) * _choices_of_prompt(request) > MAX_PROMPTS:
        name = "best_of" if request.best_of is not None else "n"
        raise bad_request(f"Prompts times {name} is more than {MAX_PROMPTS}; send several requests.", name)


def _encode_prompts(tokenizer: ModelTokenizer, request: CompletionRequest, info: Ready) -> list[list[int]]:
    truncation = truncation_of(request, info.max_context, request.max_tokens or DEFAULT_MAX_TOKENS)
    adds_special = request.add_special_tokens is not False
    prompts = []
    for prompt in request.prompt:
        if isinstance(prompt, str):
            tokens = encode_prompt(
                tokenizer,
                prompt,
                info.max_context,
                "prompt",
                adds_special=adds_special,
                truncation=truncation,
            )
        else:
            tokens = prompt if truncation is None else truncation.of(prompt)
        if not tokens:
            raise bad_request("The prompt is empty: there is nothing to continue.", "prompt", "invalid_value")
        check_token_ids(tokens, info.vocab_size, "prompt")
        prompts.append(tokens)
    return prompts


class Echo(NamedTuple):
    """Text of a prompt, and the place of each of its tokens in it; both are empty if they are not wanted."""

    text: str = ""
    offsets: Sequence[int] = ()


def _echoes(tokenizer: ModelTokenizer, request: CompletionRequest, prompts: list[list[int]]) -> list[Echo]:
    """Return the text of each prompt, as it was sent unless it was truncated."""
    if not request.echo:
        return [Echo()] * len(prompts)
    echoes = []
    for sent, tokens in zip(request.prompt, prompts, strict=True):
        is_sent = isinstance(sent, str) and request.truncate_prompt_tokens is None
        hidden_ids = tokenizer.special_ids if is_sent else frozenset[int]()
        text = sent if is_sent and isinstance(sent, str) else tokenizer.decode(tokens)
        with_offsets = request.logprobs is not None
        echoes.append(Echo(text, token_offsets(tokenizer.decode, tokens, hidden_ids) if with_offsets else ()))
    return echoes


def _report(request: CompletionRequest, prompt: Sequence[int], echo: Echo, names: TokenNames) -> PromptReport:
    """Return the report of a prompt's log-probabilities."""
    return PromptReport(
        names,
        prompt,
        offsets=echo.offsets or None,
        echo_alternatives=request.logprobs or 0,
        alternatives=request.prompt_logprobs,
    )


def _prompt_alternatives(request: CompletionRequest, prompts: list[list[int]]) -> int | None:
    """Return how many alternatives of each of the prompts' tokens are computed; None reports nothing."""
    of_echo = request.logprobs if request.echo else None
    wanted = [number for number in (of_echo, request.prompt_logprobs) if number is not None]
    if not wanted:
        return None
    reports = _choices_of_prompt(request) if request.stream else request.n or 1  # each choice repeats it
    name = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
    check_scores(reports * sum(map(len, prompts)), max(wanted), name)
    return max(wanted)


def _choices(
    prompts: list[list[int]],
    request: CompletionRequest,
    service: Service,
    priority: int,
    constraint: str | None,
) -> list[Choice]:
    text, info = service.text, service.info
    of_prompt = _choices_of_prompt(request)
    logprobs = 0 if request.logprobs is None and of_prompt > (request.n or 1) else request.logprobs
    sampling = sampling_of(request, logprobs, info, text.defaults, text.tokenizer)
    sampling = replace(sampling, prompt_logprobs=_prompt_alternatives(request, prompts))
    stop_tokens = stop_tokens_of(request, text.tokenizer, info.vocab_size, text.defaults)
    stops = stops_of(request, text.tokenizer, text.defaults)
    shown_ids = shown_special_ids(request, text.tokenizer)
    choices = []
    rule = request.repetition_detection.rule() if request.repetition_detection else None
    for prompt in prompts:
        left = info.max_context - len(prompt)
        requested = request.max_tokens if request.max_tokens is not None else DEFAULT_MAX_TOKENS
        if request.max_tokens is None:
            requested = min(requested, max(left, 1))
        max_tokens = resolve_max_tokens(len(prompt), requested or None, info.max_context, "prompt")
        max_tokens = max_tokens if requested else 1
        submits = submits_of(
            prompt, request, of_prompt, sampling, max_tokens, stop_tokens, priority, constraint
        )
        choices += [
            Choice(
                submit,
                stops,
                AnswerParser(repetition=rule),
                shown_ids=shown_ids,
                is_scored_only=request.max_tokens == 0,
            )
            for submit in submits
        ]
    return choices
