"""Translate a request's fields into engine messages: sampling parameters, length limit, stop tokens."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from wisp_runtime.engine.transport.messages import Ready, SamplingParams, Submit
from wisp_runtime.server.api.errors import (
    bad_request,
    beginning_too_long,
    context_exceeded,
    text_too_long,
)
from wisp_runtime.server.parsing.defaults import FIELDS, AnswerDefaults
from wisp_runtime.server.parsing.generation_request import GenerationRequest
from wisp_runtime.server.parsing.truncation import Truncation
from wisp_runtime.server.text.stop import StopStrings
from wisp_runtime.server.text.tokenizer import ModelTokenizer

PRIORITY_HEADER = "x-wisp-priority"  # from the gateway, which removes a client's own
PRIORITIES = {"high": -1, "normal": 0, "low": 1}  # lower runs first
SAMPLE_TOKEN_CHARS = 8  # a token of text has four or five on average
SAMPLE_MARGIN_TOKENS = 64  # by which the last word of a beginning may differ from the same in the text
SEED_BITS = 63
MAX_ID_DIGITS = 18
MIN_TOP_P = 1e-6  # the API's 0 means "only the best token"; the engine requires a positive share


def sampling_of(
    request: GenerationRequest,
    logprobs: int | None,
    info: Ready,
    defaults: AnswerDefaults,
    tokenizer: ModelTokenizer,
) -> SamplingParams:
    """Return the sampling parameters of ``request``, except the seed (see :func:`submits_of`).

    Args:
        request: fields of the body.
        logprobs: alternatives to report; None reports nothing.
        info: capabilities of the engine.
        defaults: the model's own values of fields that the request leaves out.
        tokenizer: tokenizer of bad words.

    Raises:
        ApiError: a field names no token of the model.
    """
    named = {name: getattr(request, name) for name in FIELDS if getattr(request, name) is not None}
    sampling = replace(defaults.sampling, **named)
    return replace(
        sampling,
        top_k=min(max(sampling.top_k, 0), info.vocab_size),  # the engine counts in 32 bits
        top_p=max(sampling.top_p, MIN_TOP_P),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_biases(request.logit_bias or {}, info.vocab_size),
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        min_tokens=request.min_tokens or 0,
        allowed_tokens=_allowed(request.allowed_token_ids, info.vocab_size),
        bad_words=_bad_words(request.bad_words or (), tokenizer, info.vocab_size),
    )


def _allowed(ids: Sequence[int] | None, vocab_size: int) -> bytes | None:
    """Return the bits of the tokens ``ids``, in complete words of 32."""
    if ids is None:
        return None
    check_token_ids(ids, vocab_size, "allowed_token_ids")
    bits = bytearray(-(-vocab_size // 32) * 4)
    for token in ids:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


def _bad_words(
    words: Sequence[str], tokenizer: ModelTokenizer, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, at the beginning of a text and behind a blank."""
    texts = [text for word in words for text in (word, f" {word.lstrip()}")]
    runs = dict.fromkeys(tuple(tokenizer.encode(text, adds_special=False)) for text in texts)
    return tuple(run for run in runs if run and max(run) < vocab_size)


def _biases(biases: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, bias in biases.items():
        is_number = key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS
        if not (is_number and int(key) < vocab_size):
            named = f"'logit_bias' names the token {key[:MAX_ID_DIGITS]!r}"
            raise bad_request(f"{named}; token ids are 0 to {vocab_size - 1}.", "logit_bias")
        pairs.append((int(key), bias))
    return tuple(pairs)


def priority_of(headers: Mapping[str, str]) -> int:
    """Return the priority that the gateway gave a request; normal if it gave none that is known here."""
    return PRIORITIES.get(headers.get(PRIORITY_HEADER, "normal"), PRIORITIES["normal"])


def submits_of(
    prompt: Sequence[int],
    request: GenerationRequest,
    choices: int,
    sampling: SamplingParams,
    max_tokens: int,
    stop_tokens: tuple[int, ...] = (),
    priority: int = 0,
    constraint: str | None = None,
) -> list[Submit]:
    """Return one message to the engine for each of the choices to ``prompt``; each has its own seed.

    The request's seed applies to each of its prompts as if sent alone. Without one, each prompt gets a
    random seed, so that equal prompts of a list have different choices.

    The first choice alone scores the prompt, or in a stream each, as it begins.

    Args:
        stop_tokens: token ids that end a choice.
        priority: level of priority; lower runs first.
        constraint: grammar of each choice; None: any text.
    """
    if sampling.min_tokens > max_tokens:
        raise bad_request(
            f"'min_tokens' is {sampling.min_tokens}, and at most {max_tokens} are generated: lower it, or "
            "raise max_tokens.",
            "min_tokens",
            "invalid_value",
        )
    seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
    first = Submit(
        request_id="",
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=sampling,
        stop_token_ids=stop_tokens,
        ignore_eos=bool(request.ignore_eos),
        priority=priority,
        cache_salt=_hash(request.cache_salt) if request.cache_salt else 0,
        constraint=constraint,
    )
    return [
        replace(
            first,
            request_id=uuid.uuid4().hex,
            sampling=replace(
                sampling,
                seed=choice_seed(seed, index),
                prompt_logprobs=sampling.prompt_logprobs if index == 0 or request.stream else None,
            ),
        )
        for index in range(choices)
    ]


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of choice ``index``: of the first, the request's own.

    The others' are spread over 64 bits by a hash, so that the choices of seed 1 are not those of seed 2.
    """
    if index == 0:
        return seed % (1 << 64)
    return _hash(f"{seed % (1 << 64)}:{index}") % (1 << 64)


def _hash(text: str) -> int:
    """Return 128 bits of a hash of ``text``."""
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")


def stop_tokens_of(
    request: GenerationRequest, tokenizer: ModelTokenizer, vocab_size: int, defaults: AnswerDefaults
) -> tuple[int, ...]:
    """Return the token ids that end a choice.

    They are ``stop_token_ids``, stop strings that are special tokens, and the model's own end tokens unless
    the request ignores them.

    Raises:
        ApiError: an id is not one of the model's.
    """
    ids = request.stop_token_ids or ()
    check_token_ids(ids, vocab_size, "stop_token_ids")
    special = tokenizer.special_tokens_among(request.stop or ())
    ends = () if request.ignore_eos else defaults.end_tokens
    return tuple(sorted({*ids, *(token for token in (*special, *ends) if token < vocab_size)}))


def stops_of(request: GenerationRequest, tokenizer: ModelTokenizer, defaults: AnswerDefaults) -> StopStrings:
    """Return what the request stops at, besides the model's own end tokens: these need no request."""
    ends = () if request.ignore_eos else defaults.end_tokens
    tokens: dict[int, str | int] = {token: token for token in request.stop_token_ids or ()}
    for stop in request.stop or ():
        tokens |= dict.fromkeys(tokenizer.special_tokens_among([stop]), stop)
    tokens = {token: stop for token, stop in tokens.items() if token not in ends}
    is_shown = bool(request.include_stop_str_in_output)
    return StopStrings(request.stop or (), is_shown=is_shown, tokens=tokens)


def shown_special_ids(request: GenerationRequest, tokenizer: ModelTokenizer) -> frozenset[int]:
    """Return the special tokens whose text belongs to an answer."""
    if request.skip_special_tokens is False:
        return tokenizer.special_ids
    if request.include_stop_str_in_output:
        return frozenset(tokenizer.special_tokens_among(request.stop or ()))
    return frozenset()


def resolve_max_tokens(prompt_tokens: int, requested: int | None, max_context: int, param: str) -> int:
    """Return the token limit of a choice: ``requested``, or the rest of the context.

    Raises:
        ApiError: the prompt, or prompt and completion, exceed the context.
    """
    if prompt_tokens + (requested or 1) > max_context:
        raise context_exceeded(prompt_tokens, requested, max_context, param)
    return requested or max_context - prompt_tokens


def encode_prompt(
    tokenizer: ModelTokenizer,
    text: str,
    max_context: int,
    param: str,
    *,
    adds_special: bool,
    truncation: Truncation | None = None,
) -> list[int]:
    """Return the tokens of a prompt, unless its length or its beginning says that they are too many.

    Tokenizing takes a second and 100 MB for each million characters, also of a text that is truncated.

    Raises:
        ApiError: the text is too long for the context.
    """
    max_chars = max_context * tokenizer.longest_token_chars
    if len(text) > max_chars:
        raise text_too_long(len(text), max_chars, max_context, param)
    sample_chars = max_context * SAMPLE_TOKEN_CHARS
    if truncation is not None:
        if len(text) > 2 * sample_chars:
            raise bad_request(
                f"The prompt has {len(text)} characters; of at most {2 * sample_chars} tokens are counted to "
                "be truncated. Send the part that is to be kept.",
                param,
                "context_length_exceeded",
            )
        return truncation.of(tokenizer.encode(text, adds_special=adds_special))
    if len(text) > 2 * sample_chars:
        tokens = len(tokenizer.encode(text[:sample_chars], adds_special=False))
        if tokens > max_context + SAMPLE_MARGIN_TOKENS:
            raise beginning_too_long(tokens, max_context, param)
    return tokenizer.encode(text, adds_special=adds_special)


def check_token_ids(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuse ids the model does not have, such as added tokens of a tokenizer wider than its vocabulary.

    Raises:
        ApiError: names the first such id and its place.
    """
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):
        return
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise bad_request(
                f"Token id {token} at position {index} of {param!r} is not one of this model's: "
                f"0 to {vocab_size - 1}.",
                param,
                "invalid_token_id",
            )
