"""Steps that come again and again with the same shape: recorded when seen for the second time, then replayed.

Pure: capturing is the stream's business. The first time runs as it is, so that whatever is loaded or
allocated on first use has been by the time it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from wisp_runtime.ops.protocol.stream import CapturedGraph, Stream

T = TypeVar("T")


class Graphs:
    """Recordings by key; the same key must mean the same work on the same memory.

    Attributes:
        records: whether anything is recorded yet; recordings hold addresses, so not while memory still moves.
    """

    def __init__(self, stream: Stream) -> None:
        self.records = False
        self._stream = stream
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, tuple[CapturedGraph, Any]] = {}

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, key: Hashable, body: Callable[[], T]) -> T:
        """Run ``body``, or what it was recorded as; return what it returned when it ran or was recorded."""
        known = self._recorded.get(key)
        if known is None:
            if not self.records or key not in self._seen:
                self._seen.add(key)
                return body()
            known = self._recorded[key] = self._stream.capture(body)
        recording, result = known
        recording.launch()
        returned: T = result
        return returned
