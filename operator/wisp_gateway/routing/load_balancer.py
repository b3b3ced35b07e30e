"""Select the pod for the next request. Pure: loads in, an endpoint's id out.

Least loaded first, round robin among equals. With a prefix key, rendezvous hashing ranks the pods per key, so
that prompts with the same prefix hit the same prefix cache and a pod that comes or goes moves only its own
share; a pod whose load is over its bound is passed over (Mirrokni, Thorup, Zadimoghaddam 2018,
arXiv:1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Bound on a pod's load, in even shares, before a prefix goes elsewhere.
LOAD_FACTOR = 1.25


@dataclass(frozen=True)
class EndpointLoad:
    """Load of one ready pod by this gateway.

    Args:
        used, limit: slots in use, and how many there are.
        sequences: answers that it generates now.
    """

    id: str
    used: int
    limit: int
    sequences: int


def slots_of(sequences: int, limit: int) -> int:
    """Return the slots that a request of so many answers takes at a pod of ``limit`` slots.

    At most a quarter of them: the pod runs its further answers behind other requests, so that one request
    need not close it to everybody else.
    """
    return max(1, min(sequences, limit // 4))


def select_endpoint(
    loads: Sequence[EndpointLoad], *, key: bytes | None = None, round_robin_index: int = 0
) -> str | None:
    """Select one of the ready pods; None if each is full. Load is what they generate, not their slots.

    Args:
        key: digest of the prompt's prefix; None: least load only.
        round_robin_index: counter that decides between equal loads.
    """
    free = [load for load in loads if load.used < load.limit]
    if not free:
        return None
    if key is not None and len(loads) > 1:
        bound = math.ceil(LOAD_FACTOR * (sum(load.sequences for load in loads) + 1) / len(loads))
        below_bound = [load for load in free if load.sequences < bound]
        if below_bound:
            return max(below_bound, key=lambda load: _rendezvous_weight(key, load.id)).id
    start = round_robin_index % len(free)
    rotated = [*free[start:], *free[:start]]
    return min(rotated, key=lambda load: load.sequences).id


def prefix_key(prefix: bytes) -> bytes | None:
    """Digest the prefix of a request's prompt; None if it has none."""
    return hashlib.blake2b(prefix, digest_size=8).digest() if prefix else None


def _rendezvous_weight(key: bytes, endpoint_id: str) -> bytes:
    return hashlib.blake2b(endpoint_id.encode(), key=key, digest_size=8).digest()
