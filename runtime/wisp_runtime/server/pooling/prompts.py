"""Tokens of texts that become vectors, and of pairs that a reranker judges."""

from __future__ import annotations

from collections.abc import Sequence

from wisp_runtime.engine.transport.messages import Ready
from wisp_runtime.server.api.errors import bad_request, pooled_prompt_too_long
from wisp_runtime.server.parsing.sampling import check_token_ids, encode_prompt
from wisp_runtime.server.parsing.token_requests import MAX_TEXT_CHARS
from wisp_runtime.server.pooling.settings import MARKUP
from wisp_runtime.server.text.tokenizer import ModelTokenizer

# The prompt that Qwen3-Reranker was trained with. Source: the model card of Qwen/Qwen3-Reranker-0.6B.
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class PromptEncoder:
    """Tokens of texts, within the model's context.

    Args:
        tokenizer: the model's.
        info: limits of the engine.
        max_tokens: tokens that a prompt is shortened to; None: one that is too long is refused.
    """

    def __init__(self, tokenizer: ModelTokenizer, info: Ready, max_tokens: int | None) -> None:
        self._tokenizer, self._info = tokenizer, info
        self._max_tokens = info.max_context if max_tokens == -1 else max_tokens

    def text(
        self, text: str | Sequence[int], param: str, *, adds_special: bool, end_token: int | None = None
    ) -> tuple[int, ...]:
        """Return the tokens of a text, or those given; of one that is shortened, the last.

        Args:
            text: text, or token ids.
            param: field of the request, for errors.
            adds_special: whether the model's own special tokens are put around a text.
            end_token: token that a text with special tokens ends with in any case.

        Raises:
            ApiError: there are none, too many, or others than the model's.
        """
        if isinstance(text, str):
            tokens = self._encoded(text, param, adds_special=adds_special)
            if adds_special and end_token is not None and tokens[-1:] != [end_token]:
                tokens = [*tokens, end_token]
        else:
            tokens = list(text)
        if self._max_tokens is not None:
            tokens = tokens[-self._max_tokens :]
        return self._checked(tokens, param)

    def judged(self, query: str, document: str, instruction: str | None, param: str) -> tuple[int, ...]:
        """Return the prompt of a reranker for one document; a long one is shortened at its end.

        A query that brings the model's markup is followed by the document as it is.

        Raises:
            ApiError: as of :meth:`text`.
        """
        if query.startswith(MARKUP):
            return self.text(query + document, param, adds_special=False)
        pair = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        prefix, suffix = (self._tokenizer.encode(part, adds_special=False) for part in (PREFIX, SUFFIX))
        tokens = self._encoded(pair, param, adds_special=False)
        if self._max_tokens is not None:
            tokens = tokens[: max(0, self._max_tokens - len(prefix) - len(suffix))]
        return self._checked([*prefix, *tokens, *suffix], param)

    def beginning(self, text: str, max_tokens: int | None) -> str:
        """Return the text of the first ``max_tokens`` tokens of ``text``; all of it for None."""
        if max_tokens is None:
            return text
        tokens = self._tokenizer.encode(text[:MAX_TEXT_CHARS], adds_special=False)
        return text if len(tokens) <= max_tokens else self._tokenizer.decode(tokens[:max_tokens])

    def _encoded(self, text: str, param: str, *, adds_special: bool) -> list[int]:
        if self._max_tokens is None:
            return encode_prompt(
                self._tokenizer, text, self._info.max_context, param, adds_special=adds_special
            )
        if len(text) > MAX_TEXT_CHARS:
            raise bad_request(
                f"{param!r} has a text of {len(text)} characters; at most {MAX_TEXT_CHARS} are shortened.",
                param,
            )
        return self._tokenizer.encode(text, adds_special=adds_special)

    def _checked(self, tokens: list[int], param: str) -> tuple[int, ...]:
        if not tokens:
            raise bad_request(f"{param!r} has an empty text.", param, "invalid_value")
        if len(tokens) > self._info.max_context:
            raise pooled_prompt_too_long(len(tokens), self._info.max_context, param)
        check_token_ids(tokens, self._info.vocab_size, param)
        return tuple(tokens)
