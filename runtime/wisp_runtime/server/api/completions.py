"""``POST /v1/completions``: prompts in, their continuations out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.engine.transport.messages import Ready
from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.errors import bad_request, unsupported
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import CompletionLogprobs, TokenNames, to_json
from wisp_runtime.server.api.respond import GenerationJob, respond
from wisp_runtime.server.parsing.body import read_body
from wisp_runtime.server.parsing.completion_request import MAX_PROMPTS, CompletionRequest
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
from wisp_runtime.server.text.stop import StopStrings
from wisp_runtime.server.text.tokenizer import ModelTokenizer

DEFAULT_MAX_TOKENS = 16  # the API's own


async def completions(service: Service, http_request: Request) -> Response:
    """Respond to one request."""
    request = await read_body(http_request, CompletionRequest)
    service.check_name(request.model)
    _refuse(request)
    tokenizer = service.text.tokenizer
    chars = sum(map(len, request.prompt))
    prompts = await service.threads.run(chars, _encode_prompts, tokenizer, request, service.info)
    echoes = await service.threads.run(chars, _echoes, tokenizer, request)
    job = GenerationJob(
        request=request,
        model=service.config.name,
        choices=_choices(prompts, request, service, priority_of(http_request.headers)),
        prefix="cmpl",
        kind="text_completion",
        chunk_kind="text_completion",
        formatter=lambda index: CompletionFormatter(
            index,
            service.text.names,
            echoes[index // (request.n or 1)],
            with_logprobs=request.logprobs is not None,
        ),
    )
    return await respond(service.text.generator, job, http_request)


def _refuse(request: CompletionRequest) -> None:
    refuse_unsupported(request)
    if request.echo and request.logprobs is not None:
        raise unsupported(
            "logprobs", "With echo, it would need log-probabilities of the prompt: leave one out."
        )
    if len(request.prompt) * (request.n or 1) > MAX_PROMPTS:
        raise bad_request(f"Prompts times n is more than {MAX_PROMPTS}; send several requests.", "n")


def _encode_prompts(tokenizer: ModelTokenizer, request: CompletionRequest, info: Ready) -> list[list[int]]:
    prompts = []
    for prompt in request.prompt:
        tokens = (
            encode_prompt(tokenizer, prompt, info.max_context, "prompt", adds_special=True)
            if isinstance(prompt, str)
            else prompt
        )
        if not tokens:
            raise bad_request("The prompt is empty: there is nothing to continue.", "prompt", "invalid_value")
        check_token_ids(tokens, info.vocab_size, "prompt")
        prompts.append(tokens)
    return prompts


def _echoes(tokenizer: ModelTokenizer, request: CompletionRequest) -> list[str]:
    if not request.echo:
        return [""] * len(request.prompt)
    return [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in request.prompt]


def _choices(
    prompts: list[list[int]], request: CompletionRequest, service: Service, priority: int
) -> list[Choice]:
    text, info = service.text, service.info
    sampling = sampling_of(request, request.logprobs, info, text.defaults)
    stop_tokens = stop_tokens_of(request, text.tokenizer, info.vocab_size, text.defaults)
    stops = StopStrings(request.stop or ())
    choices = []
    for prompt in prompts:
        left = info.max_context - len(prompt)
        requested = request.max_tokens or min(DEFAULT_MAX_TOKENS, max(left, 1))
        max_tokens = resolve_max_tokens(len(prompt), requested, info.max_context, "prompt")
        submits = submits_of(prompt, request, sampling, max_tokens, stop_tokens, priority)
        choices += [Choice(submit, stops) for submit in submits]
    return choices


class CompletionFormatter:
    """One choice of a completion; its text begins with ``echo``."""

    def __init__(self, index: int, names: TokenNames, echo: str, *, with_logprobs: bool) -> None:
        self._index = index
        self._names = names
        self._with_logprobs = with_logprobs
        self._echo = echo
        self._sent_chars = len(echo)
        self._texts = [echo]
        self._logprobs = CompletionLogprobs(names)
        self._finish: str | None = None

    def chunks(self, delta: AnswerDelta) -> list[str]:
        """Return one chunk, or none if it would be empty."""
        echo, self._echo = self._echo, ""
        logprobs = None
        if self._with_logprobs:
            (logprobs := CompletionLogprobs(self._names)).add(delta, self._sent_chars)
        self._sent_chars += len(delta.text)
        if not (echo or delta.text or delta.finish or logprobs):
            return []
        return [self._choice(echo + delta.text, logprobs, delta.finish)]

    def add(self, delta: AnswerDelta) -> int:
        """Keep a delta for the complete text; return the characters that are kept."""
        added_chars = self._logprobs.add(delta, self._sent_chars) if self._with_logprobs else 0
        self._sent_chars += len(delta.text)
        self._texts.append(delta.text)
        self._finish = delta.finish
        return len(delta.text) + added_chars

    def choice(self) -> str:
        """Return the complete text."""
        logprobs = self._logprobs if self._with_logprobs else None
        return self._choice("".join(self._texts), logprobs, self._finish)

    def _choice(self, text: str, logprobs: CompletionLogprobs | None, finish: str | None) -> str:
        return (
            f'{{"index":{self._index},"text":{to_json(text)},'
            f'"logprobs":{logprobs.text() if logprobs else "null"},"finish_reason":{to_json(finish)}}}'
        )
