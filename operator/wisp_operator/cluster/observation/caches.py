"""Caches of the cluster's objects, over kopf's indexes: reading makes no call.

An index lags the cluster by a moment. After we apply an object ourselves, :meth:`Caches.record_write` shows
our own write until its event arrives, so that nothing is applied twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wisp_operator.api import KIND

Json = Mapping[str, Any]
Index = Mapping[Any, Any]
Address = tuple[str, str, str]


@dataclass
class _OwnWrite:
    """Our last write of an object, and the version that the index had when we wrote."""

    document: Json
    replaced: str


class Caches:
    """Typed access to the indexes; empty until kopf has filled them."""

    def __init__(self) -> None:
        self._indexes: Mapping[str, Index] = {}
        self._own_writes: dict[Address, _OwnWrite] = {}
        self.is_filled = False

    def attach(self, indexes: Mapping[str, Index]) -> None:
        """Take kopf's indexes, by kind."""
        self._indexes = indexes

    def model(self, key: str) -> Json | None:
        """An InferenceModel by ``namespace/name``."""
        return self.get(KIND, key)

    def models(self) -> list[str]:
        """Keys of every InferenceModel."""
        return list(self._indexes.get(KIND, {}))

    def pods(self, key: str) -> list[Json]:
        """Pods of a model, oldest first."""
        pods = list(self._indexes.get("Pod", {}).get(key, ()))
        return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def versions(self, kind: str) -> dict[str, str]:
        """Resource version of every object of a kind, by ``namespace/name``."""
        return {
            f"{item['metadata']['namespace']}/{item['metadata']['name']}": _version(item)
            for store in self._indexes.get(kind, {}).values()
            for item in store
        }

    def nodes(self) -> list[Json]:
        """Every node."""
        return [node for store in self._indexes.get("Node", {}).values() for node in store]

    def child(self, document: Json) -> Json | None:
        """The object of the same kind and name as ``document``, our own last write included."""
        return self._latest(address(document), self.get(*_key_of(document)))

    def deployment(self, namespace: str, name: str) -> Json | None:
        """The Deployment of this name, our own last write included."""
        return self._latest(("Deployment", namespace, name), self.get("Deployment", f"{namespace}/{name}"))

    def children(self, kind: str, key: str) -> Iterator[Json]:
        """Objects of a kind that is pruned (:mod:`.kinds`) with the label of a model."""
        return iter(self._indexes.get(kind, {}).get(of_model(key), ()))

    def record_write(self, written: Json) -> None:
        """Remember the answer to our own write."""
        known = self.get(*_key_of(written))
        self._own_writes[address(written)] = _OwnWrite(written, _version(known))

    def get(self, kind: str, key: str) -> Json | None:
        """An object by kind and ``namespace/name``, as of its watch's last event."""
        return next(iter(self._indexes.get(kind, {}).get(key, ())), None)

    def _latest(self, where: Address, indexed: Json | None) -> Json | None:
        own = self._own_writes.get(where)
        if own is None:
            return indexed
        if _version(indexed) == own.replaced and own.replaced != _version(own.document):
            return own.document
        del self._own_writes[where]
        return indexed


def of_model(key: str) -> str:
    """Key of an index under which objects lie by their model, beside their own."""
    return f"of {key}"


def address(document: Json) -> Address:
    """Kind, namespace and name."""
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]


def _key_of(document: Json) -> tuple[str, str]:
    kind, namespace, name = address(document)
    return kind, f"{namespace}/{name}"


def _version(document: Json | None) -> str:
    return "" if document is None else str(document["metadata"].get("resourceVersion", ""))
