"""Beginnings of requests that never end, and the chunk to repeat; for every server that reads HTTP/1.1."""

from __future__ import annotations

from neighbour import MIB

MAX_BYTES = 192 * MIB
TAKEN_BYTES = 96 * MIB
"""What may leave the attacker: a body with its framing, and 32 MiB read so that the refusal arrives."""
CHUNKED = b"transfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n"
HEADS: dict[str, tuple[bytes, bytes]] = {
    "header value": (b"GET /livez HTTP/1.1\r\nhost: x\r\na: ", b"x" * 65536),
    "header name": (b"GET /livez HTTP/1.1\r\nhost: x\r\n", b"x" * 65536),
    "path": (b"GET /", b"x" * 65536),
    "query": (b"GET /livez?", b"x=%20&" * 8192),
    "method": (b"", b"G" * 65536),
    "header after header": (b"GET /livez HTTP/1.1\r\nhost: x\r\n", b"a: b\r\n" * 8192),
    "spaces before a value": (b"GET /livez HTTP/1.1\r\nhost: x\r\na:", b" " * 65536),
    "empty lines": (b"", b"\r\n" * 32768),
}
"""Heads without an end: the first bytes, and what is repeated."""
BODIES: dict[str, tuple[bytes, bytes]] = {
    "chunk size": (CHUNKED, b"0" * 65536),
    "chunk extension": (CHUNKED + b"1;a=", b"x" * 65536),
    "chunks with an extension each": (CHUNKED, (b"1;" + b"a=b;" * 250 + b"\r\n \r\n") * 64),
    "trailer value": (CHUNKED + b"2\r\n{}\r\n0\r\na: ", b"x" * 65536),
    "trailer after trailer": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 8192),
}
"""Chunked bodies without an end, after the request line and host."""
TINY_CHUNKS = (CHUNKED, b"1\r\n \r\n" * 8192)
"""Chunks of one byte each, without an end: much work for a parser, few bytes for a limit."""


def require_refusal(target, head: bytes, chunk: bytes) -> None:
    """Send ``head``, then ``chunk`` without an end: the target reads no more than its bound."""
    with target.connect() as client:
        assert client.flood(head, chunk, max_bytes=MAX_BYTES) < TAKEN_BYTES
