"""API keys: which models a key opens, and with what priority.

Keys of the gateway's own file open every model; keys of a model's file, or of its Secret, open that model. A
model with neither is open. A file that cannot be read closes what it guards: the last keys that were read
stay valid, and no others. A Secret that was never read is not known to lack a key: no reason for a 401.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from wisp_gateway.discovery.key_digests import NORMAL, Keys, digest, parse_keys
from wisp_gateway.discovery.snapshot import Model

log = logging.getLogger(__name__)


class KeyFile:
    """The keys of one file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: Keys = {}
        self._has_warned = False

    def read(self) -> Keys:
        """Return the keys as of now."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._seen:
                self._keys = parse_keys(self._path.read_text())
                self._seen = stamp
            self._has_warned = False
        except (OSError, UnicodeDecodeError) as error:
            if not self._has_warned:
                log.warning("API keys %s: %s; keeping the last good ones", self._path, error)
            self._has_warned = True
        return self._keys


class Keyring:
    """Keys of the gateway and of every model."""

    def __init__(self, path: Path | None) -> None:
        self._global = KeyFile(path) if path is not None else None
        self._files: dict[str, KeyFile] = {}

    @property
    def has_own(self) -> bool:
        """True if the gateway has a file of keys of its own."""
        return self._global is not None

    def opens_gateway(self, token: str) -> bool:
        """Return True if ``token`` is in the gateway's own file."""
        return self._global is not None and digest(token) in self._global.read()

    def is_open(self, model: Model) -> bool:
        """Return True if ``model`` needs no key."""
        return self._global is None and model.api_keys_file is None and model.keys is None

    def priority(self, token: str, model: Model) -> str | None:
        """Return the priority that ``token`` has at ``model``; None: it does not open it."""
        if self.is_open(model):
            return NORMAL
        given = digest(token)
        return next((keys[given] for keys in self._guards(model) if given in keys), None)

    def is_known(self, token: str, models: Iterable[Model]) -> bool:
        """Return True if ``token`` is a key of the gateway or of one of ``models``."""
        given = digest(token)
        if self.opens_gateway(token):
            return True
        files = {model.api_keys_file for model in models if model.api_keys_file is not None}
        if any(given in self._file(path).read() for path in files):
            return True
        return any(given in model.keys for model in models if model.keys is not None)

    def _guards(self, model: Model) -> Iterator[Keys]:
        if self._global is not None:
            yield self._global.read()
        if model.api_keys_file is not None:
            yield self._file(model.api_keys_file).read()
        if model.keys is not None:
            yield model.keys

    def _file(self, path: str) -> KeyFile:
        return self._files.setdefault(path, KeyFile(Path(path)))


def bearer(authorization: str) -> str:
    """The token of an ``Authorization`` header; empty if there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
