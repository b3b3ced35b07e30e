"""Bare names of models: which of those that ask for one holds it. Pure.

A model asks for its served name and its ``metadata.name``. It holds a name that the operator granted; of
models without the operator's decision the one that held it before, or else the oldest. When the holder goes,
its name is reserved for its namespace: a recreated model does not lose it, and requests never pass silently
to a stranger's pods.
The operator decides by it, and the gateway for models that the operator has not decided yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

# Longer than a recreation by hand, or by a GitOps tool's next sync (minutes by default).
RESERVED_S = 600.0
# NAMESPACE/NAME as Kubernetes allows them: such a name means that model and no other.
_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Claim:
    """A model that asks for bare names.

    Args:
        key: ``namespace/name``.
        created: creation time, Unix seconds.
        names: names that it asks for.
        granted, refused: names on which the operator has decided.
        leaving: those of ``names`` that its spec no longer asks for, while pods of it still have them. It
            holds them on, unless another model of its namespace asks.
    """

    key: str
    created: float
    names: frozenset[str]
    granted: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()

    @property
    def namespace(self) -> str:
        """Namespace of the model."""
        return self.key.partition("/")[0]


@dataclass(frozen=True)
class _Holding:
    """Last holder of a name; ``gone_s``: time since when there is none, None while it is there."""

    key: str
    gone_s: float | None = None

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]


class BareNames:
    """Holders of all bare names."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._by_name: dict[str, dict[str, Claim]] = {}
        self._holdings: dict[str, _Holding] = {}
        self._reserved: dict[str, float] = {}  # since when; the first to expire first

    def holder(self, name: str) -> str | None:
        """Return the key of the model that holds ``name``; None: no model does."""
        holding = self._holdings.get(name)
        return holding.key if holding is not None and holding.gone_s is None else None

    def update(self, claims: Iterable[Claim], now_s: float) -> None:
        """Replace the claims by those of all models.

        Args:
            now_s: time on any clock that only goes forward.
        """
        wanted = {claim.key: claim for claim in claims}
        keys = self._claims.keys() | wanted.keys()
        self.apply({key: wanted.get(key) for key in keys if self._claims.get(key) != wanted.get(key)}, now_s)

    def apply(self, changed: Mapping[str, Claim | None], now_s: float) -> None:
        """Decide the names of the changed claims (None: the model is gone), and those no longer reserved."""
        names = self._expired(now_s)
        for key, claim in changed.items():
            names |= self._replace(key, claim)
        for name in names:
            claims = list(self._by_name.get(name, {}).values())
            holding = _decide(name, claims, self._holdings.pop(name, None), now_s)
            if holding is not None:
                self._holdings[name] = holding
            if holding is not None and holding.gone_s is not None:
                self._reserved.setdefault(name, holding.gone_s)
            else:
                self._reserved.pop(name, None)

    def _expired(self, now_s: float) -> set[str]:
        """Return the names whose reservation is over: a tenant may have any number of them reserved."""
        over = takewhile(lambda entry: now_s - entry[1] >= RESERVED_S, self._reserved.items())
        return {name for name, _ in over}

    def _replace(self, key: str, claim: Claim | None) -> set[str]:
        """Replace the claim of a model; return the names that the old or the new one asks for."""
        before = self._claims.pop(key, None)
        names = {name for part in (before, claim) if part for name in part.names if not is_qualified(name)}
        if claim is not None:
            self._claims[key] = claim
        for name in names:
            asking = self._by_name.setdefault(name, {})
            asking.pop(key, None)
            if claim is not None and name in claim.names:
                asking[key] = claim
            if not asking:
                del self._by_name[name]
        return names


def is_qualified(name: str) -> bool:
    """Return True if ``name`` could be some model's ``namespace/name``."""
    return _QUALIFIED.fullmatch(name) is not None


def _decide(name: str, claims: list[Claim], last: _Holding | None, now_s: float) -> _Holding | None:
    def rank(claim: Claim) -> tuple[bool, bool, bool, bool, float, str]:
        return (
            name not in claim.granted,
            last is None or claim.key != last.key,
            last is None or claim.namespace != last.namespace,
            name in claim.refused,
            claim.created,
            claim.key,
        )

    best = min(_without_leaving(name, claims), key=rank, default=None)
    if best is not None and name in best.granted:
        return _Holding(best.key)
    if last is None and best is not None and name in best.refused:
        last = _Holding("", now_s)  # all were refused earlier: for whom is not remembered
    if last is not None and last.key == "" and best is not None and name not in best.refused:
        return _Holding(best.key)  # most likely the one that was recreated
    if last is not None and (best is None or best.namespace != last.namespace):
        gone_s = now_s if last.gone_s is None else last.gone_s
        if now_s - gone_s < RESERVED_S:
            return _Holding(last.key, gone_s)
    return None if best is None else _Holding(best.key)


def _without_leaving(name: str, claims: list[Claim]) -> list[Claim]:
    """Leave out models that still have ``name`` where another of their namespace asks for it."""
    asking = {claim.namespace for claim in claims if name not in claim.leaving}
    return [claim for claim in claims if name not in claim.leaving or claim.namespace not in asking]
