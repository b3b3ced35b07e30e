"""Apply a model's children: each by itself, only over the model's own, and tried less often while refused.

A child that cannot be made blocks no other; it is returned as a :class:`BlockedChild` for the status. Before
the first apply of a child that the caches do not show, the API server is asked for an object of that name,
since the watches show only objects with our label.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.observation.caches import Address, Caches, address
from wisp_operator.cluster.reconcile import drift
from wisp_operator.cluster.reconcile.ownership import name_taken, owned, owner_of
from wisp_operator.cluster.reconcile.service_address import has_surplus_address, with_address
from wisp_operator.core.observation import BlockedChild

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
MAX_PRUNED = 32  # of a reconcile, so that objects with a forged owner keep no worker busy
# An answer about the server or this replica, not about the object.
UNAVAILABLE = (0, 401, 429, 503, 504)

PREREQUISITES = ("PersistentVolumeClaim", "NetworkPolicy", "Service")  # kinds that pods need
OTHERS = tuple(kind for kind in KINDS if kind not in PREREQUISITES)

Manifest = Mapping[str, Any]
Build = Callable[[int], Sequence[Manifest]]


@dataclass(frozen=True, slots=True)
class _Blockage:
    """One child that could not be made, and the time of the next try (monotonic seconds)."""

    child: BlockedChild
    manifest: Manifest
    failures: int
    due: float


class Applier:
    """Applies and prunes the children of every model."""

    def __init__(self, caches: Caches, writer: ClusterWriter) -> None:
        self._caches, self._writer = caches, writer
        self._blockages: dict[str, dict[Address, _Blockage]] = {}

    async def apply(
        self, model: InferenceModel, replicas: int, build: Build
    ) -> tuple[int, tuple[BlockedChild, ...]]:
        """Apply what differs and delete what is no longer desired; pods only where all that they need exists.

        Args:
            replicas: decided number of pods.
            build: builder of the children for a number of pods.

        Returns:
            The number of pods that the Deployment may have, and the children that cannot be made now.

        Raises:
            ApiError: the API server cannot be reached, or the namespace ends.
            NotLeading: another replica leads now.
        """
        wanted = build(replicas)
        blocked = [await self._apply(model, manifest) for manifest in _of(wanted, PREREQUISITES)]
        if any(child and child.is_absent for child in blocked):
            replicas = min(replicas, self.replicas(model))
            wanted = [manifest for manifest in build(replicas) if manifest["kind"] != "Job"]
        blocked += [await self._apply(model, manifest) for manifest in _of(wanted, OTHERS)]
        await self._prune(model, wanted)
        if any(child and child.is_absent and child.kind == "Deployment" for child in blocked):
            replicas = 0
        return replicas, tuple(child for child in blocked if child and not child.is_passing)

    def replicas(self, model: InferenceModel) -> int:
        """Number of pods that the model's own Deployment requests now; 0 without one."""
        deployments = [self._caches.deployment(model.namespace, model.name)]
        return next((int(live.get("spec", {}).get("replicas", 0)) for live in owned(deployments, model)), 0)

    def retry_s(self, key: str) -> float | None:
        """Seconds until a blocked child of a model is tried again; None if none is blocked."""
        due = [blockage.due for blockage in self._blockages.get(key, {}).values()]
        return max(0.1, min(due) - time.monotonic()) if due else None

    def forget(self, key: str) -> None:
        """Drop the state of a model that is gone."""
        self._blockages.pop(key, None)

    async def _prune(self, model: InferenceModel, wanted: Iterable[Manifest]) -> None:
        """Delete some of what is no longer desired; the event of each deletion leads here again."""
        kept = {address(manifest) for manifest in wanted}
        kinds = (kind.name for kind in KINDS.values() if kind.is_pruned)
        children = chain.from_iterable(self._caches.children(kind, model.key) for kind in kinds)
        surplus = (child for child in owned(children, model) if address(child) not in kept)
        leaving = (child for child in surplus if not child["metadata"].get("deletionTimestamp"))
        for child in list(islice(leaving, MAX_PRUNED)):
            await self._writer.delete(child)

    async def _apply(self, model: InferenceModel, desired: Manifest) -> BlockedChild | None:
        where, live = address(desired), self._caches.child(desired)
        is_ours = live is not None and owner_of(live, model) == "model"
        if is_ours and live is not None and has_surplus_address(desired, live):
            if is_at_rest := not self.replicas(model) and not self._caches.pods(model.key):
                await self._writer.delete(live)
            live, desired = (None, desired) if is_at_rest else (live, with_address(desired, live))
            is_ours = not is_at_rest
        manifest = drift.with_digest(desired)
        is_due = not is_ours or drift.differs(manifest, live)
        before = self._blockages.get(model.key, {}).get(where)
        if is_due and before and before.manifest == manifest and time.monotonic() < before.due:
            return before.child
        blocked = await self._try(model, manifest, live) if is_due else None
        self._record(model.key, where, manifest, blocked)
        return blocked

    async def _try(
        self, model: InferenceModel, manifest: Manifest, live: Manifest | None
    ) -> BlockedChild | None:
        kind, _, name = address(manifest)
        try:
            if live is None or owner_of(live, model) != "model":
                live = await self._writer.find(manifest)
            owner = "model" if live is None else owner_of(live, model)
            if live is not None and owner == "stranger":
                return name_taken(live, model)
            if owner == "former":
                return BlockedChild(kind, name, "NameTaken", "", is_passing=True)
            self._caches.record_write(await self._writer.apply(manifest, over=live))
        except ApiError as error:
            if error.code in UNAVAILABLE or error.is_namespace_ending:
                raise
            message = f"{kind} {name} was refused by the API server: {error.message or error}"
            return BlockedChild(kind, name, "ChildRefused", message, is_absent=live is None)
        return None

    def _record(self, key: str, where: Address, manifest: Manifest, blocked: BlockedChild | None) -> None:
        """Remember when to try again; each failure for the same reason doubles the time."""
        blockages = self._blockages.setdefault(key, {})
        before = blockages.pop(where, None)
        if blocked is not None:
            is_again = before is not None and before.child.reason == blocked.reason
            failures = before.failures + 1 if before and is_again else 0
            retry_s = FIRST_RETRY_S * 2.0 ** (0 if blocked.is_passing else min(failures, 10))
            due = time.monotonic() + min(MAX_RETRY_S, retry_s)
            blockages[where] = _Blockage(blocked, manifest, failures, due)
        if not blockages:
            del self._blockages[key]


def _of(manifests: Sequence[Manifest], kinds: Sequence[str]) -> list[Manifest]:
    return [manifest for kind in kinds for manifest in manifests if manifest["kind"] == kind]
