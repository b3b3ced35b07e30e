"""Budget in bytes for everything that the gateway holds for its clients: bodies, answers, unread streams.

A holder has a quarter of it at most, so that no client and no model takes it all. The first bytes of each
request are free, so that a short one is never refused because of others at its address. Bookkeeping only:
bytes are taken here before they are kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter

SHARE = 4
# The number of connections bounds them: 64 MiB for 8,192.
FREE_BYTES = 8 * 1024


class ByteBudget:
    """Bytes held, in total and by holder (a client, or a model).

    Attributes:
        turn: lock under which long bodies are scanned, one at a time, or many would stop the loop together.
    """

    def __init__(self, total_bytes: int) -> None:
        self.held_bytes = 0
        self.turn = asyncio.Lock()
        self._total_bytes = total_bytes
        self._by_holder: Counter[str] = Counter()

    def open(self, holder: str) -> HeldBytes:
        """Return an empty holding of ``holder``."""
        return HeldBytes(self, holder)

    def take(self, holder: str, count: int) -> bool:
        """Take ``count`` bytes; False, and nothing taken, if the budget or the holder's share is spent."""
        share_bytes = max(self._total_bytes // SHARE, 1)
        if self.held_bytes + count > self._total_bytes or self._by_holder[holder] + count > share_bytes:
            return False
        self.held_bytes += count
        self._by_holder[holder] += count
        return True

    def give_back(self, holder: str, count: int) -> None:
        """Give back ``count`` bytes."""
        self.held_bytes -= count
        self._by_holder[holder] -= count
        if not self._by_holder[holder]:
            del self._by_holder[holder]


class HeldBytes:
    """Bytes held for one request."""

    def __init__(self, budget: ByteBudget, holder: str) -> None:
        self.count = 0
        self._budget = budget
        self._holder = holder

    def take(self, count: int) -> bool:
        """Hold ``count`` more bytes; False if the budget refuses them."""
        charge = _charge(self.count + count) - _charge(self.count)
        if not self._budget.take(self._holder, charge):
            return False
        self.count += count
        return True

    def release(self, count: int | None = None) -> None:
        """Give back ``count`` bytes, or all."""
        before, self.count = self.count, 0 if count is None else self.count - count
        self._budget.give_back(self._holder, _charge(before) - _charge(self.count))

    def move_to(self, holder: str) -> bool:
        """Charge another holder from now on; False, and nothing held, if its share refuses the bytes."""
        count = self.count
        self.release()
        self._holder = holder
        return self.take(count)


def _charge(count: int) -> int:
    return max(0, count - FREE_BYTES)
