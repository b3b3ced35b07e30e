"""Reading of a connection, paused while requests wait behind an unfinished answer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class PipelineFlow(FlowControl):
    """Flow control that reads on only when nothing waits: an application that reads its own request resumes.

    Args:
        pipeline: requests that wait; what was read of them is in no budget.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Read again; the last of the waiting requests does so when its turn comes."""
        if not self._pipeline:
            super().resume_reading()
