"""Time for a client to take what was written: a connection whose client takes too little is aborted."""

from __future__ import annotations

import asyncio


class WriteWatch:
    """Watch of one connection's write buffer, from its first unsent bytes until it is empty.

    Args:
        timeout_s: time in which the client must take ``min_bytes``, or all that is left.
    """

    def __init__(self, transport: asyncio.Transport, timeout_s: float, min_bytes: int) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._min_bytes = min_bytes
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch, unless that has begun or nothing is unsent; goes on after a close."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._timer is None and unsent_bytes:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s, self._check, unsent_bytes)

    def stop(self) -> None:
        """Stop: the client has caught up, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, before_bytes: int) -> None:
        self._timer = None
        left_bytes = self._transport.get_write_buffer_size()
        if left_bytes and before_bytes - left_bytes < self._min_bytes:
            self._transport.abort()
        else:
            self.start()
