"""SentencePiece's BPE as ``tokenizers`` computes it: tokens, merges by score, bytes of other characters.

A file lists tokens and their scores; SentencePiece merges the neighbours whose token has the highest score.
The same follows from a list of merges, in the order of their tokens' scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

_SPACE = "▁"
_NORMAL, _UNKNOWN, _BYTE = 1, 2, 6


def sentencepiece(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, adds_space: bool
) -> Tokenizer:
    """Build the tokenizer of a file's ``tokens``, without its special tokens.

    Args:
        tokens: all tokens, in the order of their ids.
        scores: score of each.
        kinds: kind of each, in ggml's numbers.
        adds_space: whether a text, and what follows a special token, is read as if a space preceded it.
    """
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    model = models.BPE(
        vocab=vocab,
        merges=list(merges(tokens, scores, kinds)),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=_BYTE in kinds,
    )
    built = Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    texts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        spaces.insert(0, normalizers.Prepend(_SPACE))
        texts.append(decoders.Strip(" ", left=1))
    built.normalizer = normalizers.Sequence(spaces)
    built.decoder = decoders.Sequence(texts)
    return built


def merges(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that make up another, in the order in which they are merged.

    Tokens of a higher score come first; of equal ones those of a lower id. Of the pairs that make up the same
    token, those of tokens with lower ids come first.
    """
    ids = {token: index for index, token in enumerate(tokens) if kinds[index] == _NORMAL}
    for token in sorted(ids, key=lambda token: (-scores[ids[token]], ids[token])):
        pairs = ((token[:end], token[end:]) for end in range(1, len(token)))
        known = ((ids[left], ids[right]) for left, right in pairs if left in ids and right in ids)
        for left_id, right_id in sorted(known):
            yield tokens[left_id], tokens[right_id]
