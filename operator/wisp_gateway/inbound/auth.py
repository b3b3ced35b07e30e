"""API keys: which models a key opens, and with what priority.

Keys of the gateway's own file open every model; keys of a model's file, or of its Secret, open that model. A
model with neither is open. A file that cannot be read closes what it guards: the last keys that were read
stay valid, and no others. A Secret that was never read is not known to lack a key: no reason for a 401.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wisp_gateway.discovery.key_digests import NO_KEY, Key, Keys, parse_keys
from wisp_gateway.discovery.snapshot import Model

log = logging.getLogger(__name__)


class KeyFile:
    """The keys of one file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: Keys = {}
        self._has_warned = False
        self._warning = ""

    def read(self) -> Keys:
        """Return the keys as of now."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._seen:
                parsed = parse_keys(self._path.read_text(), str(self._path))
                self._keys, self._seen = parsed.keys, stamp
                if parsed.warning and parsed.warning != self._warning:
                    log.warning("%s", parsed.warning)
                self._warning = parsed.warning
            self._has_warned = False
        except (OSError, UnicodeDecodeError) as error:
            if not self._has_warned:
                log.warning("API keys %s: %s; keeping the last good ones", self._path, error)
            self._has_warned = True
        return self._keys


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """Keys of all models of a snapshot: a look-up takes the same time however many models there are.

    Attributes:
        secrets: keys in the models' Secrets; several may have the same one, each with limits of its own.
        files: paths of the models' key files.
        has_open: True if a model has no keys of its own.
        has_closed: True if a model has keys of its own.
        are_read: False if a model's Secret was not read yet.
    """

    secrets: Mapping[bytes, list[Key]]
    files: frozenset[str]
    has_open: bool
    has_closed: bool
    are_read: bool

    @classmethod
    def of(cls, models: Collection[Model]) -> ModelKeys:
        """Gather the keys of ``models``."""
        secrets: dict[bytes, list[Key]] = {}
        for model in models:
            for given, key in (model.keys or {}).items():
                same = secrets.setdefault(given, [])
                same += [key] * (key not in same)
        is_closed = [model.api_keys_file is not None or model.keys is not None for model in models]
        return cls(
            secrets=secrets,
            files=frozenset(model.api_keys_file for model in models if model.api_keys_file is not None),
            has_open=not all(is_closed),
            has_closed=any(is_closed),
            are_read=all(model.are_keys_read for model in models),
        )


class Keyring:
    """Keys of the gateway and of every model."""

    def __init__(self, path: Path | None) -> None:
        self._global = KeyFile(path) if path is not None else None
        self._files: dict[str, KeyFile] = {}

    @property
    def has_own(self) -> bool:
        """True if the gateway has a file of keys of its own."""
        return self._global is not None

    def opens_gateway(self, given: bytes) -> bool:
        """Return True if the key of this digest is in the gateway's own file."""
        return self._global is not None and given in self._global.read()

    def is_open(self, model: Model) -> bool:
        """Return True if ``model`` needs no key."""
        return self._global is None and model.api_keys_file is None and model.keys is None

    def key(self, given: bytes, model: Model) -> Key | None:
        """Return the key by which a token of this digest opens ``model``; None: it does not open it."""
        if self.is_open(model):
            return NO_KEY
        return next((keys[given] for keys in self._guards(model) if given in keys), None)

    def find(self, given: bytes, keys: ModelKeys) -> tuple[Key, ...]:
        """Return the keys of this digest, the gateway's before the models'; none: there is no such key."""
        files = [self._global] if self._global is not None else []
        files += [self._file(path) for path in keys.files]
        of_files = (file.read().get(given) for file in files)
        return (*(key for key in of_files if key is not None), *keys.secrets.get(given, ()))

    def _guards(self, model: Model) -> Iterator[Keys]:
        if self._global is not None:
            yield self._global.read()
        if model.api_keys_file is not None:
            yield self._file(model.api_keys_file).read()
        if model.keys is not None:
            yield model.keys

    def _file(self, path: str) -> KeyFile:
        return self._files.setdefault(path, KeyFile(Path(path)))


def token_of(authorization: str, api_key: str) -> str:
    """Return the key of a request: of ``Authorization: Bearer``, else of Anthropic's ``x-api-key``."""
    scheme, _, token = authorization.partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or api_key.strip()
