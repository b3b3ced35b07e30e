"""Graphs of steps that come again with the same shape: captured when seen for the second time, then replayed.

Pure: the stream captures. The first time runs as it is, so that all that is loaded or allocated on first use
is there when it is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from wisp_runtime.ops.protocol.stream import CapturedGraph, Stream

T = TypeVar("T")


class GraphCache:
    """Captured graphs by key; the same key must mean the same work on the same memory.

    Attributes:
        captures: whether graphs are captured yet; they hold addresses, so not while memory still moves.
    """

    def __init__(self, stream: Stream) -> None:
        self.captures = False
        self._stream = stream
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, tuple[CapturedGraph, Any]] = {}

    def __len__(self) -> int:
        return len(self._captured)

    def run(self, key: Hashable, body: Callable[[], T]) -> T:
        """Run ``body``, or its graph; return what it returned when it ran or was captured."""
        known = self._captured.get(key)
        if known is None:
            if not self.captures or key not in self._seen:
                self._seen.add(key)
                return body()
            known = self._captured[key] = self._stream.capture(body)
        graph, result = known
        graph.launch()
        returned: T = result
        return returned
