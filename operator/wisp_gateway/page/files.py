"""Files of the page: read, compressed and digested once, at their first request.

``/`` is ``index.html``; every other file lies under ``/page/``. Nothing is written into them: what they
show comes from the gateway's documents, so that one file is the same for every client and key.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wisp_gateway.errors import Headers, NotFound

FOLDER = Path(__file__).with_name("assets")
_MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No byte from elsewhere, no inline script or style, no ``eval``, in no frame."""
_SECURITY: Headers = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_GZIP = re.compile(r"(gzip|\*)\s*(;\s*q=(?!0(\.0*)?$)[0-9.]+)?")  # q=0 refuses it
_CACHING: Headers = [(b"cache-control", b"no-cache"), (b"vary", b"accept-encoding")]  # asks with its ETag


@dataclass(frozen=True)
class PageFile:
    """A file of the page: its bytes, as they are and compressed, and the tag of its contents."""

    media_type: bytes
    plain: bytes
    compressed: bytes
    etag: str

    def answer(self, accept_encoding: str, if_none_match: str) -> tuple[int, bytes, Headers]:
        """Return status, body and headers for a client that accepts, and may have, this file."""
        headers = [*_SECURITY, *_CACHING, (b"etag", self.etag.encode())]
        if self._is_known(if_none_match):
            return 304, b"", headers
        headers.append((b"content-type", self.media_type))
        if not _accepts_gzip(accept_encoding):
            return 200, self.plain, headers
        return 200, self.compressed, [*headers, (b"content-encoding", b"gzip")]

    def _is_known(self, if_none_match: str) -> bool:
        tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
        return self.etag in tags or "*" in tags


def find(name: str) -> PageFile:
    """Return the file ``name`` of the page.

    Raises:
        NotFound: the page has no such file.
    """
    if name not in _names():
        raise NotFound(f"The page has no file {name[:200]!r}. It begins at /.")
    return _read(name)


@cache
def _names() -> frozenset[str]:
    paths = (path for path in FOLDER.rglob("*") if path.suffix in _MEDIA_TYPES)
    return frozenset(path.relative_to(FOLDER).as_posix() for path in paths)


@cache
def _read(name: str) -> PageFile:
    path = FOLDER / name
    plain = path.read_bytes()
    etag = f'"{hashlib.sha256(plain).hexdigest()[:16]}"'
    return PageFile(_MEDIA_TYPES[path.suffix], plain, gzip.compress(plain, mtime=0), etag)


def _accepts_gzip(accept_encoding: str) -> bool:
    return any(_GZIP.fullmatch(coding.strip()) for coding in accept_encoding.split(","))
