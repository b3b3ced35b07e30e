"""Attempts at one object: bounded in time, made ever more rarely while they fail, and none blocks another.

The API server may refuse an object (a quota, a webhook), or give no answer for it (a webhook that hangs).
Both are the object's own, and shown on its model; without an answer for a second object it is the server's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.observation.caches import Address
from wisp_operator.core.observation import BlockedChild

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
FIRST_ANSWER_S = 3.0  # time to an answer, doubled with each failure: a status follows within 5 s
MAX_ANSWER_S = 24.0
UNAUTHENTICATED = 401
NO_ANSWER = (0, 429, 503, 504)

Manifest = Mapping[str, Any]
Attempt = Callable[[], Awaitable[BlockedChild | None]]


@dataclass(frozen=True, slots=True)
class _Blockage:
    """One object that could not be made, and the time of the next attempt (monotonic seconds)."""

    child: BlockedChild
    manifest: Manifest
    failures: int
    due: float

    @property
    def answer_s(self) -> float:
        """Seconds that the next attempt may take."""
        return float(min(MAX_ANSWER_S, FIRST_ANSWER_S * 2.0 ** min(self.failures + 1, 10)))


class Unanswered:
    """Objects of one reconcile for which the API server gave no answer."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, where: Address, error: ApiError, *, is_absent: bool) -> BlockedChild:
        """Return the object as blocked.

        Raises:
            ApiError: ``error``, since it is not the first object.
        """
        self._count += 1
        if self._count > 1:
            raise error
        kind, _, name = where
        message = f"{kind} {name} could not be applied: {error.message or error}"
        return BlockedChild(kind, name, "ChildRefused", message, is_absent=is_absent)


class Blockages:
    """Objects that could not be made, of every model."""

    def __init__(self) -> None:
        self._blockages: dict[str, dict[Address, _Blockage]] = {}

    async def attempt(
        self,
        key: str,
        where: Address,
        manifest: Manifest,
        attempt: Attempt,
        unanswered: Unanswered,
        *,
        is_absent: bool = False,
    ) -> BlockedChild | None:
        """Make an attempt at an object of the model ``key``, unless one with this manifest failed just now.

        Args:
            attempt: raises ApiError only for what :func:`concerns_all`.
            is_absent: true if the model has no such object yet.

        Raises:
            ApiError: the same, if it is no missing answer or not the first.
        """
        before = self._blockages.get(key, {}).get(where)
        if before and before.manifest == manifest and time.monotonic() < before.due:
            return before.child
        answer_s = before.answer_s if before else FIRST_ANSWER_S
        limit = asyncio.timeout(answer_s)
        try:
            async with limit:
                blocked = await attempt()
        except TimeoutError:
            if not limit.expired():
                raise
            why = f"no answer within {answer_s:g} s; perhaps a webhook of the cluster gives none."
            blocked = unanswered.add(where, ApiError(where[0], 0, "", why), is_absent=is_absent)
        except ApiError as error:
            if error.code not in NO_ANSWER or error.is_namespace_ending:
                raise
            blocked = unanswered.add(where, error, is_absent=is_absent)
        self.record(key, where, manifest, blocked)
        return blocked

    def record(self, key: str, where: Address, manifest: Manifest, blocked: BlockedChild | None) -> None:
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

    def retain(self, key: str, places: Collection[Address]) -> None:
        """Drop the blockages of a model's objects that are not among ``places``: nobody asks for them now."""
        for where in self._blockages.get(key, {}).keys() - set(places):
            self.record(key, where, {}, None)

    def retry_s(self, key: str) -> float | None:
        """Seconds until an object of a model is tried again; None if none is blocked."""
        due = [blockage.due for blockage in self._blockages.get(key, {}).values()]
        return max(0.1, min(due) - time.monotonic()) if due else None

    def forget(self, key: str) -> None:
        """Drop the state of a model that is gone."""
        self._blockages.pop(key, None)


def concerns_all(error: ApiError) -> bool:
    """Whether an answer says nothing about the object: another one's may be the same."""
    return error.code in (*NO_ANSWER, UNAUTHENTICATED) or error.is_namespace_ending
