"""Bare names of a cluster's models, decided over all of them (:mod:`wisp_names.bare_names`).

What was granted is in each status, so a new leader continues from there. Models that the installation's
policy refuses serve nobody, and hold no names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wisp_names.bare_names import BareNames, Claim
from wisp_operator.api import InferenceModel, parse
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.core.access.policy import Policy
from wisp_operator.core.naming.grants import Grant, grant, leaving_names
from wisp_operator.core.times import seconds_of
from wisp_operator.errors import InvalidModel

MAX_AGE_S = 5.0  # age of decisions over all models; each model's own changes are decided at once


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The policy's decision on one version of a model's spec, so that it is parsed once."""

    uid: str | None
    generation: int | None
    is_refused: bool


class ModelNames:
    """Holders of all bare names, updated when a model asks for others."""

    def __init__(self, caches: Caches, policy: Policy) -> None:
        self._caches, self._policy = caches, policy
        self._names = BareNames()
        self._claims: dict[str, Claim] = {}
        self._refusals: dict[str, _Refusal] = {}
        self._pod_names: dict[str, tuple[str | None, ...]] = {}
        self._updated_s = -MAX_AGE_S

    def grant(
        self, model: InferenceModel, body: Mapping[str, Any], pod_names: tuple[str | None, ...] = ()
    ) -> Grant:
        """Decide on the names of one model.

        Args:
            pod_names: served name of each of its pods; None: it has not reported one yet.
        """
        self._pod_names[model.key] = pod_names
        claim = self._claim(model.key, body)
        if time.monotonic() - self._updated_s >= MAX_AGE_S:
            self.update()
        known = self._claims.get(model.key)
        if known is None or _asked(known) != _asked(claim):
            self._add(claim)
        return grant(self._names, self._claims.get(model.key, claim), model.served_name)

    def forget(self, key: str) -> None:
        """Notice at once that a model is gone, or refused."""
        self._pod_names.pop(key, None)
        if key in self._claims and not self._claimants([key]):
            del self._claims[key]
            self._names.apply({key: None}, time.monotonic())

    def _add(self, claim: Claim) -> None:
        """Decide what one model asks for anew, among all that are new: the oldest of those comes first."""
        unknown = self._claimants(key for key in self._caches.models() if key not in self._claims)
        added = {key: self._claim(key, body) for key, body in unknown.items()} | {claim.key: claim}
        self._claims |= added
        self._names.apply(added, time.monotonic())

    def _claimants(self, keys: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return the models that may hold names: neither ending nor refused."""
        bodies = ((key, self._caches.model(key)) for key in keys)
        return {key: body for key, body in bodies if body is not None and self._may_claim(key, body)}

    def update(self) -> None:
        """Decide every name anew."""
        self._updated_s = time.monotonic()
        bodies = self._claimants(self._caches.models())
        self._refusals = {key: self._refusals[key] for key in self._caches.models() if key in self._refusals}
        self._claims = {key: self._claim(key, body) for key, body in bodies.items()}
        self._names.update(self._claims.values(), self._updated_s)

    def _may_claim(self, key: str, body: Mapping[str, Any]) -> bool:
        metadata = body["metadata"]
        if metadata.get("deletionTimestamp"):
            return False
        uid, generation = metadata.get("uid"), metadata.get("generation")
        known = self._refusals.get(key)
        if known is None or not uid or (known.uid, known.generation) != (uid, generation):
            known = self._refusals[key] = _Refusal(uid, generation, self._is_refused(body))
        return not known.is_refused

    def _claim(self, key: str, body: Mapping[str, Any]) -> Claim:
        metadata, status = body["metadata"], _part(body, "status")
        named = _part(_part(body, "spec"), "model").get("servedName")
        served_name = named if isinstance(named, str) else metadata["name"]
        asked, granted = frozenset({metadata["name"], served_name}), _texts(status.get("names"))
        # A model that this leader has not reconciled yet may have pods of any name.
        leaving = leaving_names(asked, granted, served_name, self._pod_names.get(key, (None,)))
        return Claim(
            key,
            seconds_of(metadata.get("creationTimestamp")) or 0.0,
            asked | leaving,
            granted,
            _texts(status.get("refusedNames")),
            leaving,
        )

    def _is_refused(self, body: Mapping[str, Any]) -> bool:
        try:
            return bool(self._policy.refusal(parse(body)))
        except InvalidModel:  # its children are kept, so it may serve
            return False


def _asked(claim: Claim) -> tuple[frozenset[str], frozenset[str], float]:
    return claim.names, claim.leaving, claim.created


def _texts(value: Any) -> frozenset[str]:
    return frozenset(map(str, value)) if isinstance(value, list) else frozenset()


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}
