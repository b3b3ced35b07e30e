"""Which pod takes the next request. Pure: loads in, an endpoint's id out.

Least loaded first, ties in turn. With a prefix key, rendezvous hashing ranks the pods per key, so that
prompts with the same beginning meet in the same prefix cache and a pod that comes or goes moves only its
own share; a pod whose load is over its bound is passed over (Mirrokni, Thorup, Zadimoghaddam 2018,
arXiv:1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# A pod may hold this much more than an even share before a prefix goes elsewhere.
LOAD_FACTOR = 1.25
PREFIX_CHARACTERS = 1024


@dataclass(frozen=True)
class Load:
    """One pod that may take a request: how many it runs for us, and how many it may."""

    id: str
    running: int
    limit: int


def pick(loads: Sequence[Load], *, key: bytes | None = None, turn: int = 0) -> str | None:
    """Choose among the ready pods, or None if each is full.

    Args:
        key: digest of the prompt's first part; None means least load only.
        turn: any counter; it decides between equals.
    """
    free = [load for load in loads if load.running < load.limit]
    if not free:
        return None
    if key is not None and len(loads) > 1:
        bound = math.ceil(LOAD_FACTOR * (sum(load.running for load in loads) + 1) / len(loads))
        near = [load for load in free if load.running < bound]
        if near:
            return max(near, key=lambda load: _rank(key, load.id)).id
    start = turn % len(free)
    turned = [*free[start:], *free[:start]]
    return min(turned, key=lambda load: load.running).id


def prefix_key(body: dict[str, Any]) -> bytes | None:
    """Digest the first part of a request's prompt (tools, messages or prompt), or None if it has none."""
    prompt = body.get("messages", body.get("prompt"))
    if not prompt:
        return None
    digest = hashlib.blake2b(digest_size=8)
    digest.update(str(body.get("tools", ""))[:PREFIX_CHARACTERS].encode("utf-8", "replace"))
    digest.update(_beginning(prompt).encode("utf-8", "replace"))
    return digest.digest()


def _beginning(prompt: Any) -> str:
    """The first characters of a prompt, without writing all of it out."""
    if isinstance(prompt, str):
        return prompt[:PREFIX_CHARACTERS]
    if not isinstance(prompt, list):
        return ""
    text = ""
    for part in prompt[:PREFIX_CHARACTERS]:
        if len(text) >= PREFIX_CHARACTERS:
            break
        content = part.get("content") if isinstance(part, dict) else part
        role = part.get("role") if isinstance(part, dict) else ""
        text += (
            f"{role}:{content}\n"
            if not isinstance(content, str)
            else f"{role}:{content[:PREFIX_CHARACTERS]}\n"
        )
    return text[:PREFIX_CHARACTERS]


def _rank(key: bytes, endpoint_id: str) -> bytes:
    return hashlib.blake2b(endpoint_id.encode(), key=key, digest_size=8).digest()
