"""Drift of a cluster object from its desired manifest.

Pure. An apply is sent when the manifest changed (its digest, kept in an annotation of the object) or when
the object no longer holds it; so a cluster at rest costs no call at all.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST = "wisp.dev/desired"


def with_digest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a manifest and write its digest into its annotations."""
    desired = copy.deepcopy(dict(manifest))
    text = json.dumps(desired, sort_keys=True)
    annotations = desired["metadata"].setdefault("annotations", {})
    annotations[DIGEST] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return desired


def differs(desired: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether ``live`` must be applied again to hold ``desired``, which is :func:`with_digest`."""
    if live is None:
        return True
    digest = desired["metadata"]["annotations"][DIGEST]
    if live.get("metadata", {}).get("annotations", {}).get(DIGEST) != digest:
        return True
    parts = [key for key in desired if key not in ("apiVersion", "kind", "metadata")]
    return not all(_contains(desired[key], live.get(key)) for key in parts)


def _contains(desired: Any, live: Any) -> bool:
    """Whether ``live`` holds at least ``desired``; the server fills in what we leave open."""
    if isinstance(desired, Mapping):
        if not desired and live is None:  # an empty map may be stored as nothing
            return True
        return isinstance(live, Mapping) and all(
            _contains(value, live.get(key)) for key, value in desired.items()
        )
    if isinstance(desired, list):
        if not isinstance(live, list):
            return not desired and live is None
        return len(desired) == len(live) and all(map(_contains, desired, live))
    return bool(desired == live)
