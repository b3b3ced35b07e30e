"""The directory: which models exist, in which state, and where their pods listen.

Frozen values and their parser. The text is the contract with the operator (docs/architecture.md); fields we
do not know are left alone, because an operator may be newer than its gateways. Where the text comes from is
a :class:`Directory`: a file today (:mod:`.directory_file`), watches on a cluster later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from .errors import DirectoryError

STATES = ("Asleep", "Waking", "Ready", "Failed", "Suspended")
MODES = ("Hold", "Reject")
POLICIES = ("PrefixAware", "LeastLoad")


@dataclass(frozen=True)
class ColdStart:
    """What happens to a request that finds nobody ready."""

    mode: str = "Hold"
    max_wait_s: float = 300.0
    heartbeat_s: float = 10.0
    queue_limit: int = 128


@dataclass(frozen=True)
class Endpoint:
    """One pod; ``address`` is ``host:port``."""

    id: str
    address: str
    ready: bool = False
    draining: bool = False


@dataclass(frozen=True)
class Model:
    """One InferenceModel as the gateway sees it."""

    namespace: str
    name: str
    served_name: str
    state: str
    created: int = 0
    reason: str = ""
    message: str = ""
    phase: str | None = None
    progress: float | None = None
    cold_start: ColdStart = field(default_factory=ColdStart)
    routing: str = "PrefixAware"
    target_concurrency: int = 16
    api_keys_file: str | None = None
    endpoints: tuple[Endpoint, ...] = ()

    @property
    def key(self) -> str:
        """``namespace/name``, unique in a directory."""
        return f"{self.namespace}/{self.name}"


Snapshot = Mapping[str, Model]
EMPTY: Snapshot = MappingProxyType({})


class Directory(Protocol):
    """A source of snapshots; each replaces the one before as a whole."""

    def watch(self, on_change: Callable[[Snapshot], None]) -> None:
        """Call ``on_change`` with the current snapshot, then with every new one."""

    async def run(self) -> None:
        """Follow the source until cancelled."""


def parse(text: bytes | str) -> Snapshot:
    """Parse the JSON of docs/architecture.md into models by ``namespace/name``.

    Raises:
        DirectoryError: not JSON, or a field is missing or of the wrong kind; the message names it.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DirectoryError(f"not JSON: {error}") from error
    reader = _Reader(document, "directory")
    models = [_model(item) for item in reader.items("models")]
    by_key: dict[str, Model] = {}
    for model in models:
        if model.key in by_key:
            raise DirectoryError(f"models: {model.key} appears twice")
        by_key[model.key] = model
    return MappingProxyType(by_key)


class _Reader:
    """Typed access to one JSON object, with the path in every complaint."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise DirectoryError(f"{path}: expected an object, found {type(value).__name__}")
        self._fields: dict[str, Any] = value
        self._path = path

    def text(self, name: str, default: str | None = None, among: tuple[str, ...] = ()) -> str:
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (not value and default is None):
            raise self.complaint(name, "a string", value)
        if among and value not in among:
            raise self.complaint(name, " or ".join(among), value)
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self._fields.get(name) is not None else None

    def number(self, name: str, default: float, least: float = 0.0) -> float:
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise self.complaint(name, f"a number of at least {least:g}", value)
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name, 0.0) if self._fields.get(name) is not None else None

    def whole(self, name: str, default: int, least: int = 0) -> int:
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.complaint(name, f"a whole number of at least {least}", value)
        return value

    def flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self.complaint(name, "true or false", value)
        return value

    def items(self, name: str) -> list[_Reader]:
        value = self._fields.get(name, [])
        if not isinstance(value, list):
            raise self.complaint(name, "a list", value)
        return [_Reader(item, f"{self._path}.{name}[{index}]") for index, item in enumerate(value)]

    def child(self, name: str) -> _Reader:
        return _Reader(self._fields.get(name, {}), f"{self._path}.{name}")

    def complaint(self, name: str, expected: str, found: object) -> DirectoryError:
        return DirectoryError(f"{self._path}.{name}: expected {expected}, found {found!r}")


def _model(item: _Reader) -> Model:
    name = item.text("name")
    return Model(
        namespace=item.text("namespace"),
        name=name,
        served_name=item.text("servedName", name),
        state=item.text("state", among=STATES),
        created=item.whole("created", 0),
        reason=item.text("reason", ""),
        message=item.text("message", ""),
        phase=item.optional_text("phase"),
        progress=item.optional_number("progress"),
        cold_start=_cold_start(item.child("coldStart")),
        routing=item.text("routing", "PrefixAware", POLICIES),
        target_concurrency=item.whole("targetConcurrency", 16, least=1),
        api_keys_file=item.optional_text("apiKeysFile"),
        endpoints=tuple(_endpoint(endpoint) for endpoint in item.items("endpoints")),
    )


def _cold_start(item: _Reader) -> ColdStart:
    return ColdStart(
        mode=item.text("mode", "Hold", MODES),
        max_wait_s=item.number("maxWaitSeconds", 300),
        heartbeat_s=item.number("heartbeatSeconds", 10, least=0.01),
        queue_limit=item.whole("queueLimit", 128),
    )


def _endpoint(item: _Reader) -> Endpoint:
    address = item.text("address")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise item.complaint("address", "host:port", address)
    return Endpoint(item.text("id"), address, ready=item.flag("ready"), draining=item.flag("draining"))
