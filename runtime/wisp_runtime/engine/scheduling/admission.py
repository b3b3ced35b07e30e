"""Refuse requests that can never run, with a reason.

Pure. The server has validated a request before; the checks repeated here are those whose failure would stop
or harm the other requests of the batch.
"""

from __future__ import annotations

from wisp_runtime.engine.constrained.bits import size_bytes
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.transport.messages import MAX_LOGIT_TOKENS, Pooling, SamplingParams, Submit


def max_length(request: Submit, limits: Limits) -> int:
    """Return the tokens, prompt included, at which ``request`` ends at the latest."""
    if request.pooling is not None:
        return len(request.prompt) + 1
    return min(len(request.prompt) + request.max_tokens, limits.max_context)


def prompt_refusal(prompt: tuple[int, ...], limits: Limits, answer_tokens: int = 1) -> str | None:
    """Return why no request with ``prompt`` can ever run, or None; once for all choices of one prompt.

    Args:
        answer_tokens: tokens that its answer has at least.
    """
    if not prompt:
        return "the prompt is empty; send at least one token"
    if len(prompt) + answer_tokens > limits.max_context:
        return (
            f"the prompt has {len(prompt)} tokens and the context holds {limits.max_context}, "
            "answer included; shorten the prompt"
        )
    return _token_refusal(min(prompt), max(prompt), limits)


def _token_refusal(lowest: int, highest: int, limits: Limits) -> str | None:
    if lowest < 0 or highest >= limits.vocab:
        return f"a token id lies outside 0 … {limits.vocab - 1}; this model has no such token"
    return None


def _pooling_refusal(pooling: Pooling, limits: Limits) -> str | None:
    if pooling.kind not in limits.poolings:
        kinds = ", ".join(sorted(limits.poolings)) or "none"
        return f"pooling {pooling.kind!r} is not computed on this device; these kinds are: {kinds}"
    if pooling.kind != "logits":
        return None
    ids = pooling.token_ids
    if not 0 < len(ids) <= MAX_LOGIT_TOKENS:
        return f"the logits of {len(ids)} tokens are asked for; ask for 1 to {MAX_LOGIT_TOKENS}"
    return _token_refusal(min(ids), max(ids), limits)


def _rule_refusal(request: Submit, limits: Limits) -> str | None:
    """Return why the tokens that a request names are none of the model's, or None."""
    named = [*request.stop_token_ids, *(token for token, _ in request.sampling.logit_bias)]
    named += [token for word in request.sampling.bad_words for token in word]
    if request.thinking is not None:
        markers = (*request.thinking.openings, *request.thinking.closings)
        if not all((request.thinking.openings, request.thinking.closings, *markers)):
            return "a marker of thinking has no tokens; leave the budget of thinking out"
        named += [token for marker in markers for token in marker]
    return _token_refusal(min(named), max(named), limits) if named else None


def _sampling_refusal(sampling: SamplingParams, limits: Limits) -> str | None:
    if not 0 <= sampling.top_k <= limits.vocab:
        return f"top_k is {sampling.top_k}; this model has {limits.vocab} tokens to choose from"
    if not all(sampling.bad_words):
        return "a word of bad_words has no tokens; leave it out"
    needed_bytes = size_bytes(limits.vocab)
    if sampling.allowed_tokens is not None and len(sampling.allowed_tokens) != needed_bytes:
        return (
            f"allowed_tokens has {len(sampling.allowed_tokens)} bytes; "
            f"the bits of this model's {limits.vocab} tokens take {needed_bytes}"
        )
    return None


def refusal(request: Submit, limits: Limits) -> str | None:
    """Return why ``request``, whose prompt is sound, can never run, or None if it can."""
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}; ask for at least 1"
    if request.pooling is not None and (why := _pooling_refusal(request.pooling, limits)):
        return why
    if why := _rule_refusal(request, limits) or _sampling_refusal(request.sampling, limits):
        return why
    is_scored = request.sampling.prompt_logprobs is not None
    if is_scored and limits.separate_prefill_decode and limits.cache.states:
        return (
            "prompt_logprobs are not computed by a model with recurrent state in deterministic mode, where "
            "rows of logits that other requests leave must not divide a prompt; leave them out"
        )
    # The last sampled token is never computed, so it needs no block.
    tokens = max_length(request, limits) - 1
    for pool in limits.cache.pools:
        needed = pool.group.sequence_blocks(tokens, limits.block_tokens, limits.max_step_tokens)
        if needed > pool.blocks:
            return (
                f"prompt and answer may need {needed} KV blocks and the engine has {pool.blocks}; "
                "lower max_tokens, or serve with a larger --kv-cache-memory"
            )
    return None
