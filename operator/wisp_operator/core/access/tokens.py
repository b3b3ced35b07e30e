"""Tokens by which pods recognise the gateway, and the operator recognises a gateway's demand.

All are derived from the keys of one file, one key a line, the newest first once every pod knows it. A pod
holds only SHA-256 digests of its model's tokens, so that a pod proves nothing to another. The gateway
derives the same tokens (docs/contracts.md, *Tokens*).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from pathlib import Path

from wisp_operator.errors import WispError

log = logging.getLogger(__name__)

HEADER = "x-wisp-token"
GATEWAY_HEADER = "x-wisp-gateway"
MIN_KEY_CHARS = 32
RECHECK_S = 1.0


class TokenKeysInvalid(WispError):
    """The file of keys cannot be read, or holds none that is long enough."""


class TokenKeys:
    """The keys of an installation; without a file, no token is sent and none is asked for.

    Raises:
        TokenKeysInvalid: the file cannot be used at start. Later, the last good keys are kept.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._checked_at = time.monotonic()
        self._keys = _read(file) if file else ()

    @property
    def is_used(self) -> bool:
        """Whether tokens are sent and asked for."""
        return self._file is not None

    def of_pods(self, model_key: str) -> str:
        """Token for the pods of a model (``namespace/name``); empty if none are used."""
        keys = self._current()
        return _token(keys[0], f"pod:{model_key}") if keys else ""

    def digests(self, model_key: str) -> tuple[str, ...]:
        """SHA-256 digests of the tokens that a model's pods accept, one a key."""
        tokens = (_token(key, f"pod:{model_key}") for key in self._current())
        return tuple(hashlib.sha256(token.encode()).hexdigest() for token in tokens)

    def proves_demand(self, gateway: str, token: str) -> bool:
        """Whether ``token`` allows to report demand under this gateway's name; always if none are used."""
        if not self.is_used:
            return True
        given = token.encode(errors="surrogateescape")
        known = (_token(key, f"demand:{gateway}").encode() for key in self._current())
        return any(hmac.compare_digest(given, wanted) for wanted in known)

    def _current(self) -> tuple[str, ...]:
        """The keys, read again when the file has changed."""
        now = time.monotonic()
        if self._file is None or now - self._checked_at < RECHECK_S:
            return self._keys
        self._checked_at = now
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._seen:
                self._keys, self._seen = _read(self._file), stamp
        except (OSError, TokenKeysInvalid) as error:
            log.error("the keys of tokens stay as they were: %s", error)
        return self._keys


def make_keys_file(file: Path) -> Path:
    """Write a file with one new key, readable by its owner alone."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
        text.write(f"{secrets.token_hex(32)}\n")
    return file


def _read(file: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise TokenKeysInvalid(f"cannot read the keys of tokens, {file}: {error}.") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys or min(map(len, keys)) < MIN_KEY_CHARS:
        raise TokenKeysInvalid(
            f"{file} must hold one key a line, each of at least {MIN_KEY_CHARS} characters, "
            "as of: openssl rand -hex 32."
        )
    return keys


def _token(key: str, purpose: str) -> str:
    return hmac.new(key.encode(), purpose.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
