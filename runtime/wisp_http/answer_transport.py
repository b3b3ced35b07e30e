"""Transport of one answer on a connection that serves several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AnswerTransport:
    """The connection as one answer sees it: closing waits until the request's body was read.

    Args:
        close_gently: closes once what was written is sent and what the client still sends is read.
    """

    def __init__(self, transport: asyncio.Transport, close_gently: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.close = close_gently
