"""Select the pod for the next request. Pure: loads in, an endpoint's id out.

Without a prompt: least loaded first, round robin among equals. With one, the pod that has least to do until
the prompt is computed: what the pod has not cached of it, what of its cache must go for that, the prompts
that it computes already, and a part for each answer that it generates. So a cached prefix attracts requests
for as long as it saves more than an idle pod would, and one that everybody shares is at several pods soon. A
session stays at its pod while that is within its share of the load (Mirrokni, Thorup, Zadimoghaddam 2018,
arXiv:1608.01350). Equals are ranked by rendezvous hashing of the prompt's prefix, in which gateways agree.

Costs in work to do, instead of a threshold on the matched share, and the term for eviction are Preble's
(Srivatsa et al. 2024, arXiv:2407.00023); the router of NVIDIA Dynamo adds up prefill and decode, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Bound on a pod's load, in even shares, before a session goes elsewhere.
LOAD_FACTOR = 1.25
# Bytes of a prompt that take a pod as long to compute as one answer more delays the others.
SEQUENCE_BYTES = 2048


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """Load of one ready pod by this gateway.

    Args:
        used, limit: slots in use, and how many there are.
        sequences: answers that it generates now.
        pending_bytes: bytes of prompts that it was sent, has not cached, and has not answered.
        matched_bytes: bytes of the request's prompt that it has probably cached.
        evicted_bytes: bytes that it would have to evict for the rest of the prompt.
        has_session: True if it served the request's session last.
    """

    id: str
    used: int
    limit: int
    sequences: int
    pending_bytes: int = 0
    matched_bytes: int = 0
    evicted_bytes: int = 0
    has_session: bool = False


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
        key: digest that ranks equals, of the session or of the prompt's prefix; None: least load only.
        round_robin_index: counter that decides between equal loads without a key.
    """
    free = [load for load in loads if load.used < load.limit]
    if not free:
        return None
    if key is None or len(loads) == 1:
        start = round_robin_index % len(free)
        return min([*free[start:], *free[:start]], key=lambda load: load.sequences).id
    bound = math.ceil(LOAD_FACTOR * (sum(load.sequences for load in loads) + 1) / len(loads))
    for load in free:
        if load.has_session and load.sequences < bound:
            return load.id
    lowest = min(map(_cost_bytes, free))
    equals = [load.id for load in free if _cost_bytes(load) == lowest]
    return max(equals, key=lambda id: rendezvous_weight(key, id))


def home_endpoint(loads: Sequence[EndpointLoad]) -> str | None:
    """Return the one pod that has a request's session, or most of its prompt; None: no pod, or several."""
    for load in loads:
        if load.has_session:
            return load.id
    most_bytes = max((load.matched_bytes for load in loads), default=0)
    homes = [load.id for load in loads if load.matched_bytes == most_bytes]
    return homes[0] if most_bytes and len(homes) == 1 else None


def _cost_bytes(load: EndpointLoad) -> int:
    """Return the work before the answer, but for the prompt's length, which is the same everywhere."""
    work_bytes = load.pending_bytes + load.evicted_bytes - load.matched_bytes
    return work_bytes + SEQUENCE_BYTES * load.sequences


def rendezvous_weight(key: bytes, endpoint_id: str) -> bytes:
    """Return the weight of a pod for a key: the pods are ranked by it."""
    return hashlib.blake2b(endpoint_id.encode(), key=key, digest_size=8).digest()
