"""Service discovery on a cluster: watches of InferenceModels and of the EndpointSlices of their Services.

The operator is not involved: while it, or the API server, is away, the last good snapshot stays in force. The
first snapshot waits until both lists were read, since a model without known pods would seem to be asleep, and
until each Secret that a model names was tried once, since its keys would seem to be wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from wisp_gateway.discovery.api_server import ApiServer
from wisp_gateway.discovery.informer import Informer
from wisp_gateway.discovery.resources import (
    MODEL_LABEL,
    MODELS_PATH,
    SLICES_PATH,
    EndpointSlice,
    ModelObject,
    merge_slices,
    read_model,
    read_slice,
)
from wisp_gateway.discovery.secret_keys import SecretKeys
from wisp_gateway.discovery.snapshot import EMPTY, Model, Snapshot

# Changes within this time are published together.
GATHER_S = 0.01
# Pause after a rebuild, in its durations: whoever changes objects without end gets a fifth of the loop.
REST = 4.0
# Longest wait for Secrets before a gateway is ready: none of them may keep it from serving others.
SECRETS_WAIT_S = 15.0


class KubernetesDiscovery:
    """Snapshots of some namespaces of a cluster, or of all (none given)."""

    def __init__(self, api: ApiServer, namespaces: Sequence[str] = ()) -> None:
        self.snapshot: Snapshot = EMPTY
        scopes = [f"/namespaces/{namespace}" for namespace in namespaces] or [""]
        self._api = api
        self._models = [
            Informer(api, MODELS_PATH.format(scope), {}, read_model, self._model_changed) for scope in scopes
        ]
        selector = {"labelSelector": MODEL_LABEL}
        self._slices = [
            Informer(api, SLICES_PATH.format(scope), selector, read_slice, self._slice_changed)
            for scope in scopes
        ]
        self._informers: list[Informer[Any]] = [*self._models, *self._slices]
        self._keys = SecretKeys(api, self._secret_changed)
        self._merged: dict[str, Model] = {}
        self._changed: set[str] = set()
        self._has_changed = asyncio.Event()
        self._on_change: list[Callable[[Snapshot], None]] = []
        self._is_synced = False

    @property
    def is_synced(self) -> bool:
        """True once every list was read and every Secret was tried."""
        return self._is_synced

    def watch(self, on_change: Callable[[Snapshot], None]) -> None:
        """Call ``on_change`` with the current snapshot, then with every new one."""
        self._on_change.append(on_change)
        on_change(self.snapshot)

    async def run(self) -> None:
        """Watch the cluster until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in self._informers:
                    tasks.create_task(informer.run())
                tasks.create_task(self._keys.run())
                tasks.create_task(self._publish())
        finally:
            await self._api.close()

    async def _publish(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        self._watch_secrets()
        await self._keys.tried(SECRETS_WAIT_S)
        while True:
            self._has_changed.clear()
            began_s = time.monotonic()
            self._rebuild()
            pause_s = max(GATHER_S, REST * (time.monotonic() - began_s))
            await self._has_changed.wait()
            await asyncio.sleep(pause_s)

    def _rebuild(self) -> None:
        """Merge the changed models with their endpoints; call the watchers if the snapshot differs."""
        self._watch_secrets()
        objects = self._objects()
        slices: dict[str, list[EndpointSlice]] = {}
        for endpoint_slice in (
            endpoint_slice for informer in self._slices for endpoint_slice in informer.objects.values()
        ):
            slices.setdefault(endpoint_slice.model_key, []).append(endpoint_slice)
        changed, self._changed = self._changed, set()
        for key in changed:
            if key in objects:
                self._merged[key] = self._merge(objects[key], slices.get(key, []))
            else:
                self._merged.pop(key, None)
        snapshot = MappingProxyType({key: self._merged[key] for key in sorted(self._merged)})
        if snapshot != self.snapshot or not self._is_synced:
            self.snapshot, self._is_synced = snapshot, True
            for on_change in self._on_change:
                on_change(snapshot)

    def _merge(self, model_object: ModelObject, slices: Sequence[EndpointSlice]) -> Model:
        model = replace(model_object.model, endpoints=merge_slices(slices))
        if not model_object.secret:
            return model
        keys = self._keys.keys(_secret(model_object))
        return replace(model, keys=keys or {}, are_keys_read=keys is not None)

    def _watch_secrets(self) -> None:
        objects = self._objects().values()
        self._keys.watch(_secret(model_object) for model_object in objects if model_object.secret)

    def _objects(self) -> dict[str, ModelObject]:
        return {
            key: model_object for informer in self._models for key, model_object in informer.objects.items()
        }

    def _model_changed(self, old: ModelObject | None, new: ModelObject | None) -> None:
        self._mark(*(model_object.model.key for model_object in (old, new) if model_object is not None))

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._mark(*(endpoint_slice.model_key for endpoint_slice in (old, new) if endpoint_slice is not None))

    def _secret_changed(self, secret: str) -> None:
        self._mark(
            *(
                key
                for key, model_object in self._objects().items()
                if model_object.secret and _secret(model_object) == secret
            )
        )

    def _mark(self, *keys: str) -> None:
        self._changed.update(keys)
        self._has_changed.set()


def _secret(model_object: ModelObject) -> str:
    return f"{model_object.model.namespace}/{model_object.secret}"
