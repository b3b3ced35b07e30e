"""Whether a cluster object still is what we asked for.

Pure. An apply is sent when the wish changed (its digest, kept in an annotation of the object) or when the
object no longer holds what we wished; so a cluster at rest costs no call at all.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST = "wisp.dev/desired"


def stamped(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a manifest and write its digest into its annotations."""
    wish = copy.deepcopy(dict(manifest))
    text = json.dumps(wish, sort_keys=True)
    annotations = wish["metadata"].setdefault("annotations", {})
    annotations[DIGEST] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return wish


def differs(wish: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether ``live`` must be applied again to hold ``wish``, which is :func:`stamped`."""
    if live is None:
        return True
    digest = wish["metadata"]["annotations"][DIGEST]
    if live.get("metadata", {}).get("annotations", {}).get(DIGEST) != digest:
        return True
    parts = [key for key in wish if key not in ("apiVersion", "kind", "metadata")]
    return not all(_holds(wish[key], live.get(key)) for key in parts)


def _holds(wish: Any, live: Any) -> bool:
    """Whether ``live`` says at least what ``wish`` says; the server fills in what we leave open."""
    if isinstance(wish, Mapping):
        if not wish and live is None:  # an empty map may be stored as nothing
            return True
        return isinstance(live, Mapping) and all(_holds(value, live.get(key)) for key, value in wish.items())
    if isinstance(wish, list):
        if not isinstance(live, list):
            return not wish and live is None
        return len(wish) == len(live) and all(map(_holds, wish, live))
    return bool(wish == live)
