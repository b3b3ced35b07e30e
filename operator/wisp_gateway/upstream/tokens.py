"""Tokens that prove to pods and to the operator that a request comes from this gateway.

Derived from the first key of a file that the operator reads as well (docs/contracts.md, *Tokens*); the file
is read again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from pathlib import Path

from wisp_gateway.errors import Headers, StartError

log = logging.getLogger(__name__)

HEADER = b"x-wisp-token"
GATEWAY_HEADER = b"x-wisp-gateway"
ACCOUNT_HEADER = b"x-wisp-account"
ACCOUNT_CHARS = 16
MIN_KEY_CHARS = 32
RECHECK_S = 1.0


class Tokens:
    """The tokens of one gateway; none are sent without a file.

    Raises:
        StartError: the file cannot be used at start. Later, the last good key is kept.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._checked_at = time.monotonic()
        self._headers: dict[str, Headers] = {}
        self._key = _first_key(file) if file else b""

    def for_pods(self, model_key: str) -> Headers:
        """The header for requests to the pods of a model (``namespace/name``)."""
        return self._header(f"pod:{model_key}")

    def for_account(self, model_key: str, account: str) -> Headers:
        """The header that tells a pod whose responses a request may see; none for a client without a key."""
        if self._file is None or not account.startswith("key:"):
            return []
        self._reread(self._file)
        named = f"account:{model_key}:{account}".encode()
        digest = hmac.new(self._key, named, hashlib.sha256).hexdigest()
        return [(ACCOUNT_HEADER, digest[:ACCOUNT_CHARS].encode())]

    def for_demand(self, gateway: str) -> Headers:
        """The headers for reports of demand under this gateway's name."""
        return [(GATEWAY_HEADER, gateway.encode()), *self._header(f"demand:{gateway}")]

    def keep_only(self, model_keys: set[str]) -> None:
        """Forget the tokens of models that are gone."""
        kept = {f"pod:{key}" for key in model_keys}
        for purpose in [known for known in self._headers if known.startswith("pod:") and known not in kept]:
            del self._headers[purpose]

    def _header(self, purpose: str) -> Headers:
        if self._file is None:
            return []
        self._reread(self._file)
        header = self._headers.get(purpose)
        if header is None:
            token = hmac.new(self._key, purpose.encode(), hashlib.sha256).hexdigest()
            header = self._headers[purpose] = [(HEADER, token.encode())]
        return header

    def _reread(self, file: Path) -> None:
        now = time.monotonic()
        if now - self._checked_at < RECHECK_S:
            return
        self._checked_at = now
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._seen:
                self._key, self._seen = _first_key(file), stamp
                self._headers.clear()
        except (OSError, StartError) as error:
            log.error("the key of tokens stays as it was: %s", error)


def _first_key(file: Path) -> bytes:
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot read the keys of tokens, {file}: {error}.") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or min(map(len, keys)) < MIN_KEY_CHARS:
        raise StartError(
            f"{file} must hold one key a line, each of at least {MIN_KEY_CHARS} characters, "
            "as of: openssl rand -hex 32."
        )
    return keys[0].encode()
