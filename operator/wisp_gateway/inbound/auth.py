"""API keys: access to the gateway and to models, from files with one ``name:key`` or ``key`` a line.

Keys of the gateway's own file open every model; keys of a model's file, or of its Secret, open that model. A
model with neither is open. Only digests are kept, and every one is compared, so the time taken reveals
nothing. A file that cannot be read closes what it guards: the last keys that were read stay valid, and no
others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from wisp_gateway.discovery.key_digests import digest, is_among, parse_keys
from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.errors import Unauthorized

log = logging.getLogger(__name__)


class KeyFile:
    """The digests of one file's keys, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._digests: Sequence[bytes] = ()
        self._has_warned = False

    def opens(self, token: str) -> bool:
        """Return True if ``token`` is one of the keys."""
        self._refresh()
        return is_among(token, self._digests)

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._seen:
                self._digests = [digest(key) for key in parse_keys(self._path.read_text())]
                self._seen = stamp
            self._has_warned = False
        except (OSError, UnicodeDecodeError) as error:
            if not self._has_warned:
                log.warning("API keys %s: %s; keeping the last good ones", self._path, error)
            self._has_warned = True


class Keyring:
    """Keys of the gateway and of every model."""

    def __init__(self, path: Path | None) -> None:
        self._global = KeyFile(path) if path is not None else None
        self._files: dict[str, KeyFile] = {}

    def check(self, token: str, model: Model | None = None) -> None:
        """Check that ``token`` may use ``model`` (None: the gateway itself).

        Raises:
            Unauthorized: it is missing or unknown.
        """
        if self.opens(token, model):
            return
        if not token:
            raise Unauthorized("No API key. Send it as 'Authorization: Bearer KEY'.")
        raise Unauthorized("This API key is not valid here. Ask whoever runs this gateway for one.")

    def opens(self, token: str, model: Model | None = None) -> bool:
        """Return True if ``token`` may use ``model`` (None: the gateway itself)."""
        guards: list[Callable[[str], bool]] = [self._global.opens] if self._global is not None else []
        if model is not None and model.api_keys_file is not None:
            guards.append(self._file(model.api_keys_file).opens)
        if model is not None and model.key_digests is not None:
            guards.append(partial(is_among, digests=model.key_digests))
        return not guards or any(opens(token) for opens in guards)

    def _file(self, path: str) -> KeyFile:
        return self._files.setdefault(path, KeyFile(Path(path)))


def bearer(authorization: str) -> str:
    """The token of an ``Authorization`` header; empty if there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
