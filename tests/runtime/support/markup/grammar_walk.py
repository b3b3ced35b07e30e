"""Random answers that a grammar allows, a byte or a special token at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

BYTES = 256
_CLOSERS = frozenset(b'"}])')
_MAX_STEPS, _MAX_CLOSING_STEPS = 250, 2000


@dataclass
class ByteVocabulary:
    """Tokenizer of single bytes, with special tokens behind them.

    Attributes:
        special: texts of the special tokens.
    """

    special: Sequence[str] = ()
    eos_token_id: int = field(init=False)
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        """Number the tokens."""
        self.eos_token_id = BYTES + len(self.special)
        self.ids = {text: BYTES + index for index, text in enumerate(self.special)}
        ends = [*self.special, "<eos>"]
        self.tokens = [bytes([byte]) for byte in range(BYTES)] + [text.encode() for text in ends]
        self.special_token_ids = list(range(BYTES, BYTES + len(ends)))
        self.tokenizer = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode() if isinstance(text, str) else text)

    def matcher(self, grammar: str) -> LLMatcher:
        """Return a grammar's parser."""
        matcher = LLMatcher(self.tokenizer, grammar)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, grammar: str, text: str) -> bool:
        """Return whether a grammar allows a text, in which special tokens are written out."""
        matcher, tokens = self.matcher(grammar), self.encode(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text in which special tokens are written out."""
        for special, token in self.ids.items():
            before, found, after = text.partition(special)
            if found:
                return [*self.encode(before), token, *self.encode(after)]
        return self(text)


def random_answer(
    vocabulary: ByteVocabulary, grammar: str, source: random.Random, snippets: Sequence[str]
) -> str | None:
    """Return a random text that the grammar allows; None if the walk found no end.

    Args:
        vocabulary: tokens.
        grammar: grammar in llguidance's Lark.
        source: randomness.
        snippets: texts that are tried as they are: without them no walk leaves a free text.
    """
    matcher, walked = vocabulary.matcher(grammar), list[int]()
    for step in range(_MAX_CLOSING_STEPS):
        is_closing = step > _MAX_STEPS
        if matcher.is_accepting() and (is_closing or source.random() < 0.2):
            break
        tokens = _next(vocabulary, matcher, source, snippets, is_closing=is_closing)
        taken = matcher.try_consume_tokens(tokens)
        walked += tokens[:taken]
        if matcher.is_stopped():
            break
    if not matcher.is_accepting():
        return None
    return b"".join(vocabulary.tokens[token] for token in walked if token != vocabulary.eos_token_id).decode()


def _next(
    vocabulary: ByteVocabulary,
    matcher: LLMatcher,
    source: random.Random,
    snippets: Sequence[str],
    *,
    is_closing: bool,
) -> list[int]:
    if source.random() < (0.5 if is_closing else 0.2):
        snippet = source.choice(snippets)
        return vocabulary(snippet) if source.random() < 0.3 else vocabulary.encode(snippet)
    bias = matcher.compute_logit_bias()
    allowed = [token for token, is_allowed in enumerate(bias) if is_allowed]
    closers = [token for token in allowed if token in _CLOSERS]
    special = [token for token in allowed if token >= BYTES and token != vocabulary.eos_token_id]
    if closers and source.random() < (0.9 if is_closing else 0.3):
        return [source.choice(closers)]
    if special and source.random() < 0.3:
        return [source.choice(special)]
    plain = [token for token in allowed if 32 <= token < 127 or token == 10]
    return [source.choice(plain or allowed)] if allowed else []
