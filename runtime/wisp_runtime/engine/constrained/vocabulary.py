"""A model's tokens as bytes, from which grammars compute masks; made at the first constrained request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.errors import ModelUnsupported

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """Tokens that grammars count.

    Attributes:
        tokenizer: their bytes, in a trie.
        end_ids: ``[E]`` int64, tokens that stand for the end of a text.
    """

    tokenizer: LLTokenizer
    end_ids: Array

    @property
    def size(self) -> int:
        """Number of token ids: the model's, or those of a wider tokenizer."""
        return self.tokenizer.vocab_size


def read_vocabulary(path: Path, vocab: int, end_ids: Collection[int]) -> Vocabulary:
    """Read the tokenizer of the model at ``path``; takes 0.34 s for 49,152 tokens, 0.23 s of it at a time.

    For so long, each time, the library holds Python's lock, and the engine's steps halt.

    Args:
        path: folder of the model, or a GGUF file.
        vocab: V, number of the model's token ids; those beyond its tokenizer's are never allowed.
        end_ids: the model's end tokens.

    Raises:
        TokenizerUnreadable: a file is missing or broken.
        ModelUnsupported: the model has no end token, or its tokenizer is none that grammars can use.
    """
    from wisp_runtime.convert.tokenizer_files import TokenizerFiles

    ends = sorted(token for token in end_ids if token < vocab)
    if not ends:
        raise ModelUnsupported(
            "config.json names no end token of the model, so an answer in a grammar could not end; add "
            "eos_token_id to it"
        )
    file, content = TokenizerFiles(path).tokenizer()
    try:
        tokenizer = _tokenizer(content.decode(), vocab, ends)
    except ValueError as error:
        raise ModelUnsupported(
            f"{file}: an answer in a grammar needs the bytes of each token, which this tokenizer "
            f"does not give: {error}. Use a model with a byte-level or byte-fallback tokenizer"
        ) from error
    return Vocabulary(tokenizer, np.array(ends, np.int64))


def _tokenizer(text: str, vocab: int, end_ids: list[int]) -> LLTokenizer:
    from llguidance import LLTokenizer

    try:
        tokenizer = LLTokenizer(text, n_vocab=vocab, eos_token=end_ids, slices=[])
    except ValueError:  # also of a tokenizer that has more tokens than the model
        tokenizer = LLTokenizer(text, eos_token=end_ids, slices=[])
    return tokenizer.with_slices(LLTokenizer.general_slices())  # apart: a step may run in between
