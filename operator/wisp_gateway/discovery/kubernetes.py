"""A directory from a cluster: InferenceModels and the EndpointSlices of their Services, watched.

The operator is not asked: with it, or with the API server, away, the last good snapshot stays in force.
Nothing is published before both lists were read once, since a model whose pods are not known yet would seem
to be asleep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from wisp_gateway.discovery.api_server import ApiServer
from wisp_gateway.discovery.informer import Mirror
from wisp_gateway.discovery.resources import (
    MODEL_LABEL,
    MODELS_PATH,
    SLICES_PATH,
    ModelObject,
    Slice,
    join,
    read_model,
    read_slice,
)
from wisp_gateway.discovery.secret_keys import SecretKeys
from wisp_gateway.discovery.snapshot import EMPTY, Model, Snapshot

# Changes within this time are published together.
GATHER_S = 0.01


class KubernetesDirectory:
    """Follow some namespaces of a cluster, or all (none given)."""

    def __init__(self, api: ApiServer, namespaces: Sequence[str] = ()) -> None:
        self.snapshot: Snapshot = EMPTY
        scopes = [f"/namespaces/{namespace}" for namespace in namespaces] or [""]
        self._api = api
        self._models = [
            Mirror(api, MODELS_PATH.format(scope), {}, read_model, self._model_changed) for scope in scopes
        ]
        selector = {"labelSelector": MODEL_LABEL}
        self._slices = [
            Mirror(api, SLICES_PATH.format(scope), selector, read_slice, self._slice_changed)
            for scope in scopes
        ]
        self._mirrors: list[Mirror[Any]] = [*self._models, *self._slices]
        self._keys = SecretKeys(api, self._secret_changed)
        self._joined: dict[str, Model] = {}
        self._changed: set[str] = set()
        self._has_changed = asyncio.Event()
        self._on_change: list[Callable[[Snapshot], None]] = []
        self._is_synced = False

    @property
    def is_synced(self) -> bool:
        """Every list was read once."""
        return self._is_synced

    def watch(self, on_change: Callable[[Snapshot], None]) -> None:
        """Call ``on_change`` with the current snapshot, then with every new one."""
        self._on_change.append(on_change)
        on_change(self.snapshot)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for mirror in self._mirrors:
                    tasks.create_task(mirror.run())
                tasks.create_task(self._keys.run())
                tasks.create_task(self._publish())
        finally:
            await self._api.close()

    async def _publish(self) -> None:
        for mirror in self._mirrors:
            await mirror.synced.wait()
        while True:
            self._has_changed.clear()
            self._rebuild()
            await self._has_changed.wait()
            await asyncio.sleep(GATHER_S)

    def _rebuild(self) -> None:
        """Join what has changed, and tell the watchers if that changed anything."""
        objects = self._objects()
        self._keys.want(_secret(found) for found in objects.values() if found.secret)
        pieces: dict[str, list[Slice]] = {}
        for piece in (piece for mirror in self._slices for piece in mirror.objects.values()):
            pieces.setdefault(piece.model_key, []).append(piece)
        changed, self._changed = self._changed, set()
        for key in changed:
            if key in objects:
                self._joined[key] = self._join(objects[key], pieces.get(key, []))
            else:
                self._joined.pop(key, None)
        snapshot = MappingProxyType({key: self._joined[key] for key in sorted(self._joined)})
        if snapshot != self.snapshot or not self._is_synced:
            self.snapshot, self._is_synced = snapshot, True
            for on_change in self._on_change:
                on_change(snapshot)

    def _join(self, found: ModelObject, pieces: Sequence[Slice]) -> Model:
        digests = self._keys.digests(_secret(found)) if found.secret else None
        return replace(found.model, endpoints=join(pieces), key_digests=digests)

    def _objects(self) -> dict[str, ModelObject]:
        return {key: found for mirror in self._models for key, found in mirror.objects.items()}

    def _model_changed(self, old: ModelObject | None, new: ModelObject | None) -> None:
        self._mark(*(found.model.key for found in (old, new) if found is not None))

    def _slice_changed(self, old: Slice | None, new: Slice | None) -> None:
        self._mark(*(piece.model_key for piece in (old, new) if piece is not None))

    def _secret_changed(self, secret: str) -> None:
        self._mark(
            *(key for key, found in self._objects().items() if found.secret and _secret(found) == secret)
        )

    def _mark(self, *keys: str) -> None:
        self._changed.update(keys)
        self._has_changed.set()


def _secret(found: ModelObject) -> str:
    return f"{found.model.namespace}/{found.secret}"
