"""Tags of pods in the ids of stored responses. Pure.

A response that a pod stores is in its memory alone. The gateway tells each pod its tag, which the pod writes
into the ids that it gives (docs/contracts.md): so every gateway finds the pod of an id, without a record.
"""

from __future__ import annotations

import hashlib
import re

TAG_BYTES = 6
_ID = re.compile(rf"resp_([0-9a-f]{{{2 * TAG_BYTES}}})[0-9a-f]{{32}}")


def pod_tag(model_key: str, endpoint_id: str) -> str:
    """Return the tag of a model's pod: the same at every gateway."""
    name = f"{model_key}\n{endpoint_id}".encode()
    return hashlib.blake2b(name, digest_size=TAG_BYTES, person=b"wisp-pod-tag").hexdigest()


def tag_of(response_id: str) -> str | None:
    """Return the tag in a response's id; None if it has none."""
    match = _ID.fullmatch(response_id)
    return match[1] if match is not None else None
