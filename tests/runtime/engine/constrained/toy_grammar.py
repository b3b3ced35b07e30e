"""A vocabulary of the toy's thirteen tokens as text, by which grammars constrain its answers."""

from __future__ import annotations

import numpy as np
from toy_engine import EOS, VOCAB

from wisp_runtime.engine.constrained.vocabulary import Vocabulary

TEXTS = ("0", "1", "2", "12", "[", "]", ",", "a", "b", '"', "{", "}", "<end>")


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = EOS
    special_token_ids = (EOS,)
    tokens = tuple(text.encode() for text in TEXTS)

    def __call__(self, text: str | bytes) -> list[int]:
        content = text if isinstance(text, str) else text.decode()
        return [TEXTS.index(letter) for letter in content if letter in TEXTS]


def toy_vocabulary() -> Vocabulary:
    """Return the toy's tokens as grammars count them."""
    from llguidance import LLTokenizer

    return Vocabulary(LLTokenizer(_Tokens(), n_vocab=VOCAB), np.array([EOS]))


def text_of(tokens: list[int]) -> str:
    """Return the text of an answer, its end left out."""
    return "".join(TEXTS[token] for token in tokens if token != EOS)
