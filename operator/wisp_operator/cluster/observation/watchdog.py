"""Watchdog of the caches: a watch that died silently shows as a cache that stands still.

Every half minute the versions of all InferenceModels and their pods are listed, without their contents, and
compared with the caches. One that differs twice in a row was missed by its watch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from wisp_operator.api import API_VERSION, KIND, PLURAL
from wisp_operator.cluster.access.api_server import METADATA_ONLY, Api, ApiError
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.cluster.workqueue import WorkQueue
from wisp_operator.desired.labels import MODEL_LABEL

log = logging.getLogger(__name__)

MODELS = f"/apis/{API_VERSION}{{}}/{PLURAL}"
COMPARE_EVERY_S = 30.0
EMPTINESS_EVERY_S = 2.0
SETTLE_S = 5.0
PAGE_OBJECTS = 100
STUCK_S = 120.0
FILL_S = 60.0

Versions = dict[str, str]


class CacheWatchdog:
    """Liveness and readiness of this process: the problem in a sentence."""

    def __init__(self, api: Api, caches: Caches, queue: WorkQueue, namespaces: Sequence[str] = ()) -> None:
        """``namespaces`` are those that are watched; none means all."""
        self._api, self._caches, self._queue = api, caches, queue
        self._scopes = [f"/namespaces/{namespace}" for namespace in namespaces] or [""]
        self._stale = ""
        self._compared_at = self._began_at = time.monotonic()

    def liveness_problem(self) -> str:
        """Reason for the kubelet to restart this process; empty if there is none."""
        if self._stale:
            return self._stale
        if not self._caches.is_filled and time.monotonic() - self._began_at > FILL_S:
            return f"the watches gave nothing within {FILL_S:.0f} s; see the log"
        if (busy_s := self._queue.longest_busy_s()) > STUCK_S:
            return f"one reconcile of a model takes {busy_s:.0f} s already"
        silent_s = time.monotonic() - self._compared_at
        if silent_s > 4 * COMPARE_EVERY_S:
            return f"the watches were last compared with the cluster {silent_s:.0f} s ago"
        return ""

    def readiness_problem(self) -> str:
        """Reason why this replica cannot work yet; empty if it can."""
        return "" if self._caches.is_filled else "the caches are being filled"

    async def run(self) -> None:
        """Compare until cancelled."""
        await self._notice_emptiness()
        while True:
            await asyncio.sleep(COMPARE_EVERY_S)
            try:
                self._stale = await self._compare()
            except ApiError as error:  # a server that is away is no fault of the watches
                log.warning("comparing the caches with the cluster: %s", error)
            except Exception:
                log.exception("comparing the caches with the cluster failed; it is tried again")
            self._compared_at = time.monotonic()
            if self._stale:
                log.error("%s", self._stale)

    async def _notice_emptiness(self) -> None:
        """Count the caches of namespaces without models as filled, since nothing there causes an event.

        Where the cluster is watched, its nodes do.
        """
        while self._scopes != [""] and not self._caches.is_filled:
            try:
                self._caches.is_filled = not await self._list_versions(MODELS, {}) or self._caches.is_filled
            except ApiError as error:
                log.warning("looking for models: %s", error)
            await asyncio.sleep(EMPTINESS_EVERY_S)

    async def _compare(self) -> str:
        for kind, path, query in (
            (KIND, MODELS, {}),
            ("Pod", "/api/v1{}/pods", {"labelSelector": MODEL_LABEL}),
        ):
            missed = differing(await self._list_versions(path, query), self._caches.versions(kind))
            if missed:
                await asyncio.sleep(SETTLE_S)
                listed = await self._list_versions(path, query)
                still = missed & differing(listed, self._caches.versions(kind))
                if still:
                    names = ", ".join(sorted(name for name, _, _ in still)[:3])
                    return f"the watch of {kind} is dead: it missed changes of {names}"
        return ""

    async def _list_versions(self, path: str, query: Mapping[str, str]) -> Versions:
        """List what is watched."""
        versions: Versions = {}
        for scope in self._scopes:
            versions |= await self._list_scope(path.format(scope), query)
        return versions

    async def _list_scope(self, path: str, query: Mapping[str, str]) -> Versions:
        """List in pages: metadata of tenants' objects may have a quarter of a MiB each."""
        versions: Versions = {}
        page = {"limit": str(PAGE_OBJECTS), **query}
        while True:
            listing = await self._api.request("GET", path, verb="compare", query=page, accept=METADATA_ONLY)
            for item in listing.get("items") or ():  # an empty list is null
                metadata = item["metadata"]
                versions[f"{metadata['namespace']}/{metadata['name']}"] = metadata["resourceVersion"]
            rest = listing.get("metadata", {}).get("continue")
            if not rest:
                return versions
            page = {**page, "continue": rest}


def differing(cluster: Mapping[str, str], cache: Mapping[str, str]) -> set[tuple[str, str, str]]:
    """Objects whose version in the cluster is not the one in the cache: name, theirs, ours.

    The same triple seen twice means that the cache did not move in between; a busy object differs anew.
    """
    return {
        (name, cluster.get(name, ""), cache.get(name, ""))
        for name in cluster.keys() | cache.keys()
        if cluster.get(name) != cache.get(name)
    }
