"""Log-probabilities as JSON text, in the API's two formats: chat's and plain completions'.

With 20 alternatives a token has 1 KB of them, and a step may bring 128 tokens. So they become text as they
come, from names of tokens that were encoded once: objects of a long answer, encoded together at its end,
would stop every other stream for seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from wisp_runtime.engine.transport.messages import TokenLogprobs
from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.text.tokenizer import ModelTokenizer

LOWEST = -9999.0  # the API's stand-in for minus infinity, which JSON does not have


def to_json(value: Any) -> str:
    """Return ``value`` as compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class TokenNames:
    """Names of a tokenizer's tokens as JSON text, encoded at their first use.

    Args:
        as_ids: whether a token is named by its id (``token_id:5``): names of tokens that are only a part of a
            character are not all different.
    """

    def __init__(self, tokenizer: ModelTokenizer, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._chat: dict[int, tuple[str, str]] = {}
        self._completion: dict[int, str] = {}

    def chat_token(self, token: int, logprob: float) -> str:
        """Return chat's object of a token, without its closing brace."""
        if (parts := self._chat.get(token)) is None:
            data = self._tokenizer.token_bytes(token)
            name = to_json(_id_name(token) if self._as_ids else data.decode("utf-8", "replace"))
            parts = self._chat[token] = (f'{{"token":{name},"logprob":', f',"bytes":{to_json(list(data))}')
        return f"{parts[0]}{max(logprob, LOWEST)!r}{parts[1]}"

    def completion_token(self, token: int) -> str:
        """Return a token's text, or its bytes if they are only a part of a character."""
        if (name := self._completion.get(token)) is None:
            name = self._completion[token] = to_json(self._text(token))
        return name

    def _text(self, token: int) -> str:
        if self._as_ids:
            return _id_name(token)
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _id_name(token: int) -> str:
    return f"token_id:{token}"


def chat_entry(names: TokenNames, delta: AnswerDelta) -> str | None:
    """Return the entry of ``logprobs.content`` for a delta's token, or None if it has none."""
    if delta.token is None or delta.logprobs is None:
        return None
    best = ",".join([names.chat_token(token, logprob) + "}" for token, logprob in delta.logprobs.top])
    return f'{names.chat_token(delta.token, delta.logprobs.chosen)},"top_logprobs":[{best}]}}'


class CompletionLogprobs:
    """Lists of ``logprobs`` for the tokens of a completion.

    Args:
        names: names of the tokens.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._tokens: list[str] = []
        self._logprobs: list[str] = []
        self._best: list[str] = []
        self._offsets: list[str] = []

    def add(self, delta: AnswerDelta, offset_chars: int) -> int:
        """Add a delta's token, if it has one, and return the characters of its JSON text.

        Args:
            delta: text delta; those of a choice come in order.
            offset_chars: place of its text in that of the choice.
        """
        if delta.token is None or delta.logprobs is None:
            return 0
        return self.add_token(delta.token, delta.logprobs, offset_chars)

    def add_token(self, token: int, logprobs: TokenLogprobs | None, offset_chars: int) -> int:
        """Add a token, and return the characters of its JSON text; the first of a prompt has no logprobs."""
        self._tokens.append(self._names.completion_token(token))
        self._logprobs.append("null" if logprobs is None else repr(max(logprobs.chosen, LOWEST)))
        self._best.append("null" if logprobs is None else self._alternatives(logprobs))
        self._offsets.append(str(offset_chars))
        return len(self._tokens[-1]) + len(self._best[-1])

    def text(self, before: CompletionLogprobs | None = None) -> str:
        """Return the JSON text, of the tokens of ``before`` too."""
        lists = self._lists
        if before is not None:
            lists = [first + rest for first, rest in zip(before._lists, lists, strict=True)]
        tokens, logprobs, best, offsets = (",".join(each) for each in lists)
        return (
            f'{{"tokens":[{tokens}],"token_logprobs":[{logprobs}],"top_logprobs":[{best}],'
            f'"text_offset":[{offsets}]}}'
        )

    @property
    def _lists(self) -> list[list[str]]:
        return [self._tokens, self._logprobs, self._best, self._offsets]

    def _alternatives(self, logprobs: TokenLogprobs) -> str:
        best = {self._names.completion_token(token): max(logprob, LOWEST) for token, logprob in logprobs.top}
        return "{" + ",".join([f"{name}:{logprob!r}" for name, logprob in best.items()]) + "}"


class PromptReport:
    """Log-probabilities of a prompt's tokens as JSON text, made as they come: of an echo, and vLLM's list.

    Args:
        names: names of the tokens.
        prompt: tokens of the prompt.
        offsets: place of each token in the echoed text; None without an echo.
        echo_alternatives, alternatives: alternatives of each token of the echo, and of vLLM's list; None
            without it.
    """

    def __init__(
        self,
        names: TokenNames,
        prompt: Sequence[int],
        *,
        offsets: Sequence[int] | None = None,
        echo_alternatives: int = 0,
        alternatives: int | None = None,
    ) -> None:
        self._names, self._prompt = names, prompt
        self._offsets, self._echo_alternatives = offsets, echo_alternatives
        self._alternatives = alternatives
        self._entries = ["null"]
        self._place = 1
        self.echo = None if offsets is None else CompletionLogprobs(names)
        if self.echo is not None:
            self.echo.add_token(prompt[0], None, 0)

    def add(self, scores: Iterable[TokenLogprobs]) -> None:
        """Add the log-probabilities of the prompt's next tokens."""
        for score in scores:
            token = self._prompt[self._place]
            if self.echo is not None and self._offsets is not None:
                kept = TokenLogprobs(score.chosen, score.top[: self._echo_alternatives])
                self.echo.add_token(token, kept, self._offsets[self._place])
            if self._alternatives is not None:
                self._entries.append(self._entry(token, score))
            self._place += 1

    @property
    def has_list(self) -> bool:
        """Whether vLLM's list is wanted."""
        return self._alternatives is not None

    def text(self) -> str:
        """Return vLLM's list: an object for each token, null for the first."""
        return f"[{','.join(self._entries)}]"

    def _entry(self, token: int, score: TokenLogprobs) -> str:
        """Return the best alternatives and the token itself; its rank is known if it is one of these."""
        ranked = {each: (rank, value) for rank, (each, value) in enumerate(score.top, start=1)}
        best = dict(list(ranked.items())[: self._alternatives])
        listed = {token: ranked.get(token, (None, score.chosen)), **best}
        return "{" + ",".join([self._alternative(each, *listed[each]) for each in listed]) + "}"

    def _alternative(self, token: int, rank: int | None, logprob: float) -> str:
        name = self._names.completion_token(token)
        values = f'"logprob":{max(logprob, LOWEST)!r},"rank":{to_json(rank)},"decoded_token":{name}'
        return f'"{token}":{{{values}}}'
