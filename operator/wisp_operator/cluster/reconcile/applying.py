"""Apply a model's children: each by itself (:mod:`.blockages`), and only over the model's own.

A child that cannot be made blocks no other; it is returned as a :class:`BlockedChild` for the status. Before
the first apply of a child that the caches do not show, the API server is asked for an object of that name,
since the watches show only objects with our label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.observation.caches import Caches, address
from wisp_operator.cluster.reconcile import drift
from wisp_operator.cluster.reconcile.blockages import Blockages, Unanswered, concerns_all
from wisp_operator.cluster.reconcile.ownership import name_taken, owned, owner_of
from wisp_operator.cluster.reconcile.service_address import has_surplus_address, with_address
from wisp_operator.core.observation import BlockedChild

MAX_PRUNED = 32  # of a reconcile, so that objects with a forged owner keep no worker busy

PREREQUISITES = ("PersistentVolumeClaim", "NetworkPolicy", "Service")  # kinds that pods need
OTHERS = tuple(kind for kind in KINDS if kind not in PREREQUISITES)

Manifest = Mapping[str, Any]
Build = Callable[[int], Sequence[Manifest]]

DELETED: Manifest = {}  # of an object that must not exist


class Applier:
    """Applies and prunes the children of every model."""

    def __init__(self, caches: Caches, writer: ClusterWriter) -> None:
        self._caches, self._writer = caches, writer
        self._blockages = Blockages()

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
            ApiError: the API server gives no answer for two objects, or the namespace ends.
            NotLeading: another replica leads now.
        """
        wanted, unanswered = build(replicas), Unanswered()
        blocked = [await self._apply(model, manifest, unanswered) for manifest in _of(wanted, PREREQUISITES)]
        if any(child and child.is_absent for child in blocked):
            replicas = min(replicas, self.replicas(model))
            wanted = [manifest for manifest in build(replicas) if manifest["kind"] != "Job"]
        blocked += [await self._apply(model, manifest, unanswered) for manifest in _of(wanted, OTHERS)]
        blocked += await self._prune(model, wanted, unanswered)
        if any(child and child.is_absent and child.kind == "Deployment" for child in blocked):
            replicas = 0
        return replicas, tuple(child for child in blocked if child and not child.is_passing)

    def replicas(self, model: InferenceModel) -> int:
        """Number of pods that the model's own Deployment requests now; 0 without one."""
        deployments = [self._caches.deployment(model.namespace, model.name)]
        return next((int(live.get("spec", {}).get("replicas", 0)) for live in owned(deployments, model)), 0)

    def retry_s(self, key: str) -> float | None:
        """Seconds until a blocked child of a model is tried again; None if none is blocked."""
        return self._blockages.retry_s(key)

    def forget(self, key: str) -> None:
        """Drop the state of a model that is gone."""
        self._blockages.forget(key)

    async def _prune(
        self, model: InferenceModel, wanted: Iterable[Manifest], unanswered: Unanswered
    ) -> list[BlockedChild | None]:
        """Delete some of what is no longer desired; the event of each deletion leads here again."""
        kept = {address(manifest) for manifest in wanted}
        kinds = (kind.name for kind in KINDS.values() if kind.is_pruned)
        children = chain.from_iterable(self._caches.children(kind, model.key) for kind in kinds)
        surplus = (child for child in owned(children, model) if address(child) not in kept)
        leaving = (child for child in surplus if not child["metadata"].get("deletionTimestamp"))
        blocked, pruned = [], list(islice(leaving, MAX_PRUNED))
        self._blockages.retain(model.key, kept.union(map(address, pruned)))
        for child in pruned:
            where, attempt = address(child), partial(self._delete, child)
            blocked.append(await self._blockages.attempt(model.key, where, DELETED, attempt, unanswered))
        return blocked

    async def _delete(self, child: Manifest) -> BlockedChild | None:
        kind, _, name = address(child)
        try:
            await self._writer.delete(child)
        except ApiError as error:
            if concerns_all(error):
                raise
            message = f"{kind} {name} could not be deleted: {error.message or error}"
            return BlockedChild(kind, name, "ChildRefused", message, is_absent=False)
        return None

    async def _apply(
        self, model: InferenceModel, desired: Manifest, unanswered: Unanswered
    ) -> BlockedChild | None:
        where, live = address(desired), self._caches.child(desired)
        is_ours, is_remade = live is not None and owner_of(live, model) == "model", False
        if is_ours and live is not None and has_surplus_address(desired, live):
            is_remade = not self.replicas(model) and not self._caches.pods(model.key)
            desired = desired if is_remade else with_address(desired, live)
        manifest = drift.with_digest(desired)
        if is_ours and not is_remade and not drift.differs(manifest, live):
            self._blockages.record(model.key, where, manifest, None)
            return None
        attempt = partial(self._try, model, manifest, live, is_remade)
        is_absent = live is None
        return await self._blockages.attempt(
            model.key, where, manifest, attempt, unanswered, is_absent=is_absent
        )

    async def _try(
        self, model: InferenceModel, manifest: Manifest, live: Manifest | None, is_remade: bool
    ) -> BlockedChild | None:
        kind, _, name = address(manifest)
        try:
            if is_remade and live is not None:
                await self._writer.delete(live)
                live = None
            if live is None or owner_of(live, model) != "model":
                live = await self._writer.find(manifest)
            owner = "model" if live is None else owner_of(live, model)
            if live is not None and owner == "stranger":
                return name_taken(live, model)
            if owner == "former":
                return BlockedChild(kind, name, "NameTaken", "", is_passing=True)
            self._caches.record_write(await self._writer.apply(manifest, over=live))
        except ApiError as error:
            if concerns_all(error):
                raise
            message = f"{kind} {name} was refused by the API server: {error.message or error}"
            return BlockedChild(kind, name, "ChildRefused", message, is_absent=live is None)
        return None


def _of(manifests: Sequence[Manifest], kinds: Sequence[str]) -> list[Manifest]:
    return [manifest for kind in kinds for manifest in manifests if manifest["kind"] == kind]
