"""Decode tokens to text incrementally, never emitting half a character.

Pure: the decoder is an argument. A token may end in the middle of a character (byte-level vocabularies do
this for every emoji), and a token's text may depend on the one before it (a leading space). So each new
token is decoded together with a short window before it, and text is emitted only once it no longer ends
in a replacement character.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6  # last tokens of the prompt, decoded together with the first generated ones
HELD_TOKENS = 32  # a character has at most four bytes; a longer undecodable run stays so


class Detokenizer:
    """The text of one sequence, token by token. Push tokens, then call :meth:`finish` once.

    Args:
        decode: token ids → text, leniently (U+FFFD for bytes that are no UTF-8).
        prompt: tokens before the generated ones; only the last few are decoded, and none is emitted.
        skip: ids that are never emitted (special tokens).
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = (), skip: Collection[int] = ()
    ) -> None:
        self._decode = decode
        self._skip = skip
        self._shown = [token for token in prompt[-CONTEXT_TOKENS:] if token not in skip]
        self._shown_text = decode(self._shown) if self._shown else ""
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Add one token; return the text that is now certain, often that token's, maybe none."""
        if token in self._skip:
            return ""
        self._held.append(token)
        text = self._decode(self._shown + self._held)
        if text.endswith(REPLACEMENT) and len(self._held) < HELD_TOKENS:
            return ""
        return self._release(text)

    def finish(self) -> str:
        """Return the text held back; bytes that never became a character are U+FFFD."""
        return self._release(self._decode(self._shown + self._held)) if self._held else ""

    def _release(self, text: str) -> str:
        new = text[_shared_chars(self._shown_text, text) :]
        self._shown = self._held if new else (self._shown + self._held)[-HELD_TOKENS:]
        self._held = []
        self._shown_text = self._decode(self._shown)
        return new


def token_offsets(
    decode: Callable[[Sequence[int]], str], tokens: Sequence[int], skip: Collection[int] = ()
) -> list[int]:
    """Return the place in their text at which each of ``tokens`` begins."""
    detokenizer, offsets, chars = Detokenizer(decode, skip=skip), list[int](), 0
    for token in tokens:
        offsets.append(chars)
        chars += len(detokenizer.push(token))
    return offsets


def _shared_chars(before: str, after: str) -> int:
    """Return how many characters two texts have in common at their start."""
    if after.startswith(before):
        return len(before)
    return next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
