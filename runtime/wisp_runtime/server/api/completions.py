"""``POST /v1/completions``: prompts in, their continuations out."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.engine.transport.messages import Ready
from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.errors import bad_request, unsupported
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import CompletionLogprobs, TokenNames, to_json
from wisp_runtime.server.api.respond import GenerationJob, respond, stop_reason
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
    submits_of,
)
from wisp_runtime.server.parsing.truncation import truncation_of
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
    constraint = await service.grammars.constraint_of(request)
    tokenizer = service.text.tokenizer
    chars = sum(map(len, request.prompt))
    prompts = await service.threads.run(chars, _encode_prompts, tokenizer, request, service.info)
    echoes = await service.threads.run(chars, _echoes, tokenizer, request, prompts)
    choices = _choices(prompts, request, service, priority_of(http_request.headers), constraint)
    names = service.text.token_names(as_ids=bool(request.return_tokens_as_token_ids))
    of_prompt = _choices_of_prompt(request)
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
            echoes[index // of_prompt],
            with_logprobs=request.logprobs is not None,
            prompt_ids=choices[index].submit.prompt if request.return_token_ids else None,
        ),
        choices_per_prompt=of_prompt,
    )
    return await respond(service.text.generator, job, http_request)


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
    if request.echo and request.logprobs is not None:
        raise unsupported(
            "logprobs", "With echo, it would need log-probabilities of the prompt: leave one out."
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


def _echoes(tokenizer: ModelTokenizer, request: CompletionRequest, prompts: list[list[int]]) -> list[str]:
    """Return the text of each prompt, as it was sent unless it was truncated; empty texts without echo."""
    if not request.echo:
        return [""] * len(prompts)
    is_sent = request.truncate_prompt_tokens is None
    pairs = zip(request.prompt, prompts, strict=True)
    return [
        prompt if is_sent and isinstance(prompt, str) else tokenizer.decode(tokens)
        for prompt, tokens in pairs
    ]


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
    sampling = sampling_of(request, logprobs, info, text.defaults)
    stop_tokens = stop_tokens_of(request, text.tokenizer, info.vocab_size, text.defaults)
    stops = StopStrings(request.stop or (), is_shown=bool(request.include_stop_str_in_output))
    shown_ids = shown_special_ids(request, text.tokenizer)
    choices = []
    rule = request.repetition_detection.rule() if request.repetition_detection else None
    for prompt in prompts:
        left = info.max_context - len(prompt)
        requested = request.max_tokens or min(DEFAULT_MAX_TOKENS, max(left, 1))
        max_tokens = resolve_max_tokens(len(prompt), requested, info.max_context, "prompt")
        submits = submits_of(
            prompt, request, of_prompt, sampling, max_tokens, stop_tokens, priority, constraint
        )
        choices += [
            Choice(submit, stops, AnswerParser(repetition=rule), shown_ids=shown_ids) for submit in submits
        ]
    return choices


class CompletionFormatter:
    """One choice of a completion.

    Args:
        index: number of the choice in a stream.
        names: names of tokens.
        echo: text before the generated one.
        prompt_ids: tokens of the prompt, if token ids are reported.
    """

    def __init__(
        self,
        index: int,
        names: TokenNames,
        echo: str,
        *,
        with_logprobs: bool,
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self._index = index
        self._names = names
        self._with_logprobs = with_logprobs
        self._echo = echo
        self._sent_chars = len(echo)
        self._texts = [echo]
        self._logprobs = CompletionLogprobs(names)
        self._last = AnswerDelta(())
        self._with_ids, self._prompt_ids = prompt_ids is not None, prompt_ids
        self._token_ids: list[int] = []

    def chunks(self, delta: AnswerDelta) -> list[str]:
        """Return one chunk, or none if it would be empty."""
        echo, self._echo = self._echo, ""
        logprobs = None
        if self._with_logprobs:
            (logprobs := CompletionLogprobs(self._names)).add(delta, self._sent_chars)
        self._sent_chars += len(delta.text)
        ids = self._ids(delta)
        if not (echo or delta.text or delta.finish or logprobs or ids):
            return []
        chunk = self._choice(self._index, echo + delta.text, logprobs, delta, ids)
        self._prompt_ids = None
        return [chunk]

    def add(self, delta: AnswerDelta) -> int:
        """Keep a delta for the complete text; return the characters that are kept."""
        added_chars = self._logprobs.add(delta, self._sent_chars) if self._with_logprobs else 0
        self._sent_chars += len(delta.text)
        self._texts.append(delta.text)
        self._token_ids += self._ids(delta)
        self._last = delta
        return len(delta.text) + added_chars

    def choice(self, index: int) -> str:
        """Return the complete text as choice ``index``."""
        logprobs = self._logprobs if self._with_logprobs else None
        return self._choice(index, "".join(self._texts), logprobs, self._last, self._token_ids)

    def _ids(self, delta: AnswerDelta) -> list[int]:
        return [] if delta.generated is None or not self._with_ids else [delta.generated]

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        last: AnswerDelta,
        token_ids: Sequence[int],
    ) -> str:
        ids = f',"token_ids":{to_json(token_ids)}' if self._with_ids else ""
        prompt_ids = "" if self._prompt_ids is None else f',"prompt_token_ids":{to_json(self._prompt_ids)}'
        return (
            f'{{"index":{index},"text":{to_json(text)},"logprobs":{logprobs.text() if logprobs else "null"},'
            f'"finish_reason":{to_json(last.finish)}{stop_reason(last.stop)}{ids}{prompt_ids}}}'
        )
