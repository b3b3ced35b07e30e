"""Requests under which a pod died: sent again one at a time for each model.

Whatever ran at a dead pod may be what killed it. Sent again side by side, the one that kills would end its
neighbours' second pod too; one after the other, each shows for itself. Requests without a death do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from wisp_gateway.errors import WaitedTooLong
from wisp_gateway.routing.model_state import ModelState

# Longest time that one of them keeps the next waiting once it was sent; most pods that die do so sooner.
ALONE_S = 1.0


class Suspects:
    """Order of the requests of each model that are sent again."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[ModelState, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def alone(self, state: ModelState, wait_s: float) -> AsyncIterator[Callable[[], None]]:
        """Run the block while no other suspect of the model does; at most ``ALONE_S`` after the call yielded.

        Raises:
            WaitedTooLong: not its turn within ``wait_s``.
        """
        lock = self._locks.setdefault(state, asyncio.Lock())
        try:
            async with asyncio.timeout(max(wait_s, 0.001)):
                await lock.acquire()
        except TimeoutError as error:
            raise WaitedTooLong(
                f"Model {state.model.key} did not answer before coldStart.maxWait. Retry later.",
                retry_after_s=state.retry_after_s,
            ) from error
        turn = _Turn(lock)
        try:
            yield turn.started
        finally:
            turn.end()


class _Turn:
    """A held lock that is released once: after a time, or earlier."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock: asyncio.Lock | None = lock
        self._timer: asyncio.TimerHandle | None = None

    def started(self) -> None:
        """Begin the time that the request has alone: it was sent."""
        self._timer = asyncio.get_running_loop().call_later(ALONE_S, self.end)

    def end(self) -> None:
        """Release the lock, if it is still held."""
        lock, self._lock = self._lock, None
        if self._timer is not None:
            self._timer.cancel()
        if lock is not None:
            lock.release()
