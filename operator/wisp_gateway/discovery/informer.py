"""Informer: a local copy of one resource of the API server, by list and watch.

While the server is away the last copy stays. Any failure leads to a new list, which also covers a version
that is too old (410) and a server restored from a backup. The server ends a watch every minute and the next
one continues from its version; a watch that does not end is dead.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from wisp_gateway.discovery.api_server import GONE, ApiError, ApiServer, Json
from wisp_gateway.errors import DiscoveryError

log = logging.getLogger(__name__)

WINDOW_S = 60
GRACE_S = 10.0
BACKOFF_S = (0.1, 5.0)
# After a watch that lasted this long, the back-off starts anew.
STABLE_S = 5.0

T = TypeVar("T")


class Informer(Generic[T]):
    """Objects of one resource by ``namespace/name``, each as ``read`` returns it.

    Args:
        path: path of the list, for example ``/apis/wisp.dev/v1alpha1/inferencemodels``.
        query: selectors of the list and the watch.
        read: function from an object's JSON to the value to keep, None to skip it; an object for which it
            raises DiscoveryError is left out with a warning.
        on_change: callback with an object's value before and after a change (None: absent).
    """

    def __init__(
        self,
        api: ApiServer,
        path: str,
        query: dict[str, str],
        read: Callable[[Json], T | None],
        on_change: Callable[[T | None, T | None], None],
    ) -> None:
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.lists = 0
        self._api = api
        self._path = path
        self._query = query
        self._read = read
        self._on_change = on_change
        self._version = ""
        self._is_away = False

    async def run(self) -> None:
        """List and watch until cancelled."""
        shortest_s, longest_s = BACKOFF_S
        backoff_s = shortest_s
        while True:
            began_s = time.monotonic()
            try:
                await self._list()
                while True:
                    await self._watch()
            except ApiError as error:
                self._report(error)
            was_stable = time.monotonic() - began_s > STABLE_S
            backoff_s = shortest_s if was_stable else min(longest_s, 2 * backoff_s)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        items, self._version = await self._api.list(self._path, self._query)
        self.lists += 1
        listed = {_key(item): item for item in items}
        for key in self.objects.keys() - listed.keys():
            self._replace(key, None)
        for key, item in listed.items():
            self._store(key, item)
        if self._is_away:
            log.info("%s: the API server answers again", self._path)
        self._is_away = False
        self.synced.set()

    async def _watch(self) -> None:
        """Apply the events of one watch, which the server ends after WINDOW_S."""
        try:
            async with asyncio.timeout(WINDOW_S + GRACE_S):
                events = self._api.watch(self._path, self._query, self._version, WINDOW_S)
                async with aclosing(events):
                    async for event in events:
                        self._apply_event(event)
        except TimeoutError as error:
            raise ApiError(0, f"a watch did not end within {WINDOW_S + GRACE_S:g} s") from error

    def _apply_event(self, event: Json) -> None:
        item = event["object"]
        if event["type"] == "DELETED":
            self._replace(_key(item), None)
        elif event["type"] != "BOOKMARK":
            self._store(_key(item), item)
        self._version = item["metadata"]["resourceVersion"]

    def _store(self, key: str, item: Json) -> None:
        try:
            self._replace(key, self._read(item))
        except DiscoveryError as error:
            log.warning("%s: %s is left out: %s", self._path, key, error)
            self._replace(key, None)
        except Exception:  # one tenant's object must not end what serves the others
            log.exception("bug in the gateway: %s: %s is left out", self._path, key)
            self._replace(key, None)

    def _replace(self, key: str, new: T | None) -> None:
        old = self.objects.get(key)
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = new
        if old != new:
            self._on_change(old, new)

    def _report(self, error: ApiError) -> None:
        if error.code != GONE and not self._is_away:
            log.warning("%s: %s; keeping the last good copy", self._path, error)
            self._is_away = True


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"
