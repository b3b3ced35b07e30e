"""Record of the prompts that a pod was sent: the gateway's estimate of the pod's prefix cache.

Least recently sent first out, as in the pod, within the pod's KV cache as it reports it and within a number
of blocks. Of one prompt the last block goes first, so that what is left is a prefix again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from wisp_gateway.routing.prompt import BLOCK_ENDS

# Some 200 bytes each.
MAX_BLOCKS = 4096
BYTES_PER_TOKEN = 4
MAX_SESSIONS = 4096
# Of a pod that has not reported its KV cache.
UNKNOWN_CAPACITY_TOKENS = 32 * 1024


class PrefixRecord:
    """Blocks of prompts that one pod probably has in its cache."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.capacity_bytes = UNKNOWN_CAPACITY_TOKENS * BYTES_PER_TOKEN
        self.is_capacity_known = False
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._sessions: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def resize(self, capacity_tokens: int) -> None:
        """Take the size of the pod's KV cache as the bound."""
        self.capacity_bytes = capacity_tokens * BYTES_PER_TOKEN
        self.is_capacity_known = True
        self._evict()

    def matched_bytes(self, chain: Sequence[int]) -> int:
        """Return the length of the longest recorded prefix."""
        blocks = bisect_left(chain, True, key=lambda block: block not in self._blocks)
        return BLOCK_ENDS[blocks - 1] if blocks else 0

    def add(self, chain: Sequence[int]) -> None:
        """Record a prompt that was sent to the pod; it is the last to be evicted from now on."""
        for index in range(len(chain) - 1, -1, -1):
            block = chain[index]
            if block in self._blocks:
                self._blocks.move_to_end(block)
            else:
                size_bytes = BLOCK_ENDS[index] - (BLOCK_ENDS[index - 1] if index else 0)
                self._blocks[block] = size_bytes
                self.held_bytes += size_bytes
        self._evict()

    def evicted_bytes(self, added_bytes: int) -> int:
        """Return how many bytes must go for so many more."""
        return min(added_bytes, max(0, self.held_bytes + added_bytes - self.capacity_bytes))

    def has_session(self, session: bytes | None) -> bool:
        """Return True if the pod served the session last, as far as is recorded."""
        return session in self._sessions

    def add_session(self, session: bytes) -> None:
        """Record a session that the pod serves."""
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def drop_session(self, session: bytes) -> None:
        """Forget a session: another pod serves it."""
        self._sessions.pop(session, None)

    def clear(self) -> None:
        """Forget everything: the pod is another process now."""
        self._blocks.clear()
        self._sessions.clear()
        self.held_bytes = 0
        self.is_capacity_known = False

    def _evict(self) -> None:
        while self.held_bytes > self.capacity_bytes or len(self._blocks) > MAX_BLOCKS:
            _, size_bytes = self._blocks.popitem(last=False)
            self.held_bytes -= size_bytes
