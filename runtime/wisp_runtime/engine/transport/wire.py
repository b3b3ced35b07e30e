"""Frames of messages on the pipe between server and engine.

A frame is four bytes of length (big endian) and a pickled tuple of messages: what several of them share, such
as the prompt of a request's choices, is in it once. Pickle is safe here because both ends are this program:
the pipe is an unnamed socket pair that no one else can open.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

HEADER = struct.Struct(">I")


def encode(*messages: Any) -> bytes:
    """Return ``messages`` as one frame."""
    body = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


class Decoder:
    """Decode a stream of bytes, however it is chunked, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Append ``data`` and return the messages that it completed, in order."""
        self._buffer += data
        messages, start = list[Any](), 0
        while (body := start + HEADER.size) <= len(self._buffer):
            end = body + HEADER.unpack_from(self._buffer, start)[0]
            if end > len(self._buffer):
                break
            messages += pickle.loads(self._buffer[body:end])
            start = end
        del self._buffer[:start]
        return messages
