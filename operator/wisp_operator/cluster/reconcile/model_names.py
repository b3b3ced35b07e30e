"""Bare names of a cluster's models, decided over all of them (:mod:`wisp_names.bare_names`).

What was granted is in each status, so a new leader continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from wisp_names.bare_names import BareNames, Claim
from wisp_operator.api import InferenceModel
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.core.naming.grants import Grant, grant
from wisp_operator.core.times import seconds_of

MAX_AGE_S = 5.0  # of decisions over all models; each model's own changes are decided at once


class ModelNames:
    """Holders of all bare names, updated when a model asks for others."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._names = BareNames()
        self._claims: dict[str, Claim] = {}
        self._updated_s = -MAX_AGE_S

    def grant(self, model: InferenceModel, body: Mapping[str, Any]) -> Grant:
        """Decide on the names of one model."""
        claim = _claim(model.key, body)
        if time.monotonic() - self._updated_s >= MAX_AGE_S:
            self.update()
        known = self._claims.get(model.key)
        if known is None or (known.names, known.created) != (claim.names, claim.created):
            self._add(claim)
        return grant(self._names, self._claims.get(model.key, claim), model.served_name)

    def forget(self, key: str) -> None:
        """Notice at once that a model is gone; one that is merely refused keeps its names."""
        if key in self._claims and not self._exists(key):
            del self._claims[key]
            self._names.apply({key: None}, time.monotonic())

    def _add(self, claim: Claim) -> None:
        """Decide what one model asks for anew, among all that are new: the oldest of those comes first."""
        unknown = [key for key in self._caches.models() if key not in self._claims and self._exists(key)]
        added = {key: _claim(key, body) for key in unknown if (body := self._caches.model(key)) is not None}
        added[claim.key] = claim
        self._claims |= added
        self._names.apply(added, time.monotonic())

    def _exists(self, key: str) -> bool:
        body = self._caches.model(key)
        return body is not None and not body["metadata"].get("deletionTimestamp")

    def update(self) -> None:
        """Decide every name anew."""
        self._updated_s = time.monotonic()
        bodies = {key: self._caches.model(key) for key in self._caches.models() if self._exists(key)}
        self._claims = {key: _claim(key, body) for key, body in bodies.items() if body is not None}
        self._names.update(self._claims.values(), self._updated_s)


def _claim(key: str, body: Mapping[str, Any]) -> Claim:
    metadata = body["metadata"]
    served_name = _part(_part(body, "spec"), "model").get("servedName")
    status = _part(body, "status")
    names = [metadata["name"], served_name] if isinstance(served_name, str) else [metadata["name"]]
    return Claim(
        key,
        seconds_of(metadata.get("creationTimestamp")) or 0.0,
        frozenset(names),
        _texts(status.get("names")),
        _texts(status.get("refusedNames")),
    )


def _texts(value: Any) -> frozenset[str]:
    return frozenset(map(str, value)) if isinstance(value, list) else frozenset()


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}
