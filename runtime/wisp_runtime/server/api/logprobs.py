"""Log-probabilities in the API's two formats: chat's and plain completions'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wisp_runtime.engine.transport.messages import TokenLogprobs
from wisp_runtime.server.text.deltas import TextDelta
from wisp_runtime.server.text.tokenizer import ModelTokenizer

LOWEST = -9999.0  # the API's stand-in for minus infinity, which JSON does not have


def chat_entries(tokenizer: ModelTokenizer, delta: TextDelta) -> list[dict[str, Any]]:
    """Return the entry of ``logprobs.content`` for a delta's token, or nothing if it has none."""
    if delta.token is None or delta.logprobs is None:
        return []
    best = [_chat_token(tokenizer, token, logprob) for token, logprob in delta.logprobs.top]
    return [_chat_token(tokenizer, delta.token, delta.logprobs.chosen) | {"top_logprobs": best}]


def _chat_token(tokenizer: ModelTokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST), "bytes": list(data)}


def completion_entries(
    tokenizer: ModelTokenizer, deltas: Sequence[TextDelta], offset_chars: int
) -> dict[str, list[Any]]:
    """Return ``logprobs`` for the tokens of ``deltas``.

    Args:
        tokenizer: source of the tokens' texts.
        deltas: text deltas in order; those without a token have no entry.
        offset_chars: length of the choice's text before the first delta.
    """
    entries: dict[str, list[Any]] = {
        name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    for delta in deltas:
        if delta.token is not None and delta.logprobs is not None:
            entries["tokens"].append(_name(tokenizer, delta.token))
            entries["token_logprobs"].append(max(delta.logprobs.chosen, LOWEST))
            entries["top_logprobs"].append(_best(tokenizer, delta.logprobs))
            entries["text_offset"].append(offset_chars)
        offset_chars += len(delta.text)
    return entries


def _best(tokenizer: ModelTokenizer, logprobs: TokenLogprobs) -> dict[str, float] | None:
    if not logprobs.top:
        return None
    return {_name(tokenizer, token): max(logprob, LOWEST) for token, logprob in logprobs.top}


def _name(tokenizer: ModelTokenizer, token: int) -> str:
    """Return a token's text, or its bytes if they are only a part of a character."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
