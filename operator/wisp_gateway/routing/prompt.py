"""A prompt as routing sees it: chained hashes of its blocks, its prefix key, its session. Pure.

Two prompts share a prefix of as many bytes as their chains have equal hashes. Blocks grow with their offset:
a prompt of any length has at most a hundred, a long one none over an eighth of what is before it. The hashes
are Python's own (SipHash, keyed anew in each process): a client cannot make prompts that collide. What
gateways must agree on, the prefix key and the session, is BLAKE2b.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# Ends of blocks, in bytes: at a step of 512 to 8 KiB, of 2 KiB to 64 KiB, of 8 KiB to 512 KiB.
BLOCK_ENDS = (*range(512, 8193, 512), *range(10240, 65537, 2048), *range(73728, 524289, 8192))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt and session.

    Args:
        chain: hash of each block with all before it.
        size_bytes: bytes of the prompt.
        prefix_key: digest of its beginning; every gateway computes the same.
        session: digest of the session that its client names and of the client's account; None: no name.
    """

    chain: tuple[int, ...]
    size_bytes: int
    prefix_key: bytes
    session: bytes | None = None

    @property
    def rendezvous_key(self) -> bytes:
        """Key by which gateways without a record rank the pods alike."""
        return self.session or self.prefix_key


def prompt_of(
    parts: Sequence[bytes], *, prefix: bytes = b"", salt: bytes = b"", session: bytes | None = None
) -> Prompt:
    """Return the prompt that consists of ``parts``.

    Args:
        parts: canonical text, first what comes first in the model's context.
        prefix: its beginning, as short as gateways compare.
        salt: ``cache_salt`` of the request: prompts of different salts share nothing.
        session: digest of its session.
    """
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    chain, before, start = list[int](), hash(salt), 0
    for end in BLOCK_ENDS[: bisect_right(BLOCK_ENDS, len(text))]:
        before = hash((before, text[start:end]))
        chain.append(before)
        start = end
    salted = hashlib.blake2b(salt, digest_size=8).digest()
    key = hashlib.blake2b(prefix, key=salted, digest_size=8).digest()
    return Prompt(tuple(chain), len(text), key, session)


def session_of(account: str, name: str) -> bytes:
    """Digest a session that a client names: clients of other accounts have other sessions."""
    return hashlib.blake2b(f"{account}\n{name}".encode(), digest_size=8).digest()
