"""Heads of requests to change the protocol, written again without that wish, which a server may ignore.

A parser would take such a request's body for bytes of the other protocol, and what comes in a later read
for a request of its own.
"""

from __future__ import annotations

import httptools


def head_without_upgrade(
    parser: httptools.HttpRequestParser, url: bytes, headers: list[tuple[bytes, bytes]]
) -> bytes:
    """Return the head that ``parser`` has read, lower-case names, without its ``upgrade``."""
    lines = [b"%b %b HTTP/%b" % (parser.get_method(), url, parser.get_http_version().encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])
