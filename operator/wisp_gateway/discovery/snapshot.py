"""Snapshot of all models: their states, settings and endpoints.

Frozen values and the parser of the JSON that the operator writes (docs/contracts.md). Unknown fields are
ignored, because an operator may be newer than its gateways. A :class:`ServiceDiscovery` delivers snapshots,
from a file (:mod:`.file`) or from watches on a cluster (:mod:`.kubernetes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from wisp_gateway.discovery.json_reader import JsonReader
from wisp_gateway.discovery.key_digests import Keys
from wisp_gateway.errors import DiscoveryError

STATES = ("Asleep", "Waking", "Ready", "Failed", "Suspended")
MODES = ("Hold", "Reject")
LASTING_REASONS = ("ModelNotFound", "ModelUnsupported")
POLICIES = ("PrefixAware", "LeastLoad")


@dataclass(frozen=True)
class ColdStart:
    """Handling of requests while no pod is ready."""

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
    """One InferenceModel, as far as the gateway needs it.

    Args:
        api_keys_file: file of this model's keys, or None.
        names, refused_names: bare names that the operator has granted or refused.
        keys: keys in this model's Secret, or None if it names none.
        are_keys_read: False until that Secret was read for the first time.
        desired: number of pods that the operator wants; None: it does not say.
        can_stop: True if the operator stops its pods when it is asked to.
        idle_after_s: idle seconds after which it goes to zero; None: it never does.
        fit_verdict: verdict of the operator's own check before any pod, as in ``status.fit``; empty: none.
        uri, gpus: place of its weights, and GPUs of a pod (0: the CPU), for whoever reads about it.
    """

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
    names: frozenset[str] = frozenset()
    refused_names: frozenset[str] = frozenset()
    keys: Keys | None = None
    are_keys_read: bool = True
    endpoints: tuple[Endpoint, ...] = ()
    desired: int | None = None
    can_stop: bool = False
    idle_after_s: float | None = None
    fit_verdict: str = ""
    uri: str = ""
    gpus: int = 1

    @property
    def key(self) -> str:
        """``namespace/name``, unique in a snapshot."""
        return f"{self.namespace}/{self.name}"

    @property
    def has_lasting_failure(self) -> bool:
        """True if no later try mends its failure: the manifest, the files or the hardware have to change.

        A shortage of memory that a pod measured may end; one that was computed for the device does not.
        """
        if self.reason == "DoesNotFit":
            return self.fit_verdict == "DoesNotFit"
        return self.reason in LASTING_REASONS


Snapshot = Mapping[str, Model]
EMPTY: Snapshot = MappingProxyType({})


class ServiceDiscovery(Protocol):
    """Source of snapshots; each replaces the one before entirely."""

    @property
    def is_synced(self) -> bool:
        """True once the source has delivered a snapshot."""

    def watch(self, on_change: Callable[[Snapshot], None]) -> None:
        """Call ``on_change`` with the current snapshot, then with every new one."""

    async def run(self) -> None:
        """Watch the source until cancelled."""


def parse(text: bytes | str) -> Snapshot:
    """Parse the JSON of docs/contracts.md into models by ``namespace/name``.

    Raises:
        DiscoveryError: not JSON, or a field is missing or of the wrong kind; the message names it.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DiscoveryError(f"not JSON: {error}") from error
    reader = JsonReader(document, "directory")
    models = [_model(item) for item in reader.items("models")]
    by_key: dict[str, Model] = {}
    for model in models:
        if model.key in by_key:
            raise DiscoveryError(f"models: {model.key} appears twice")
        by_key[model.key] = model
    return MappingProxyType(by_key)


def _model(item: JsonReader) -> Model:
    name = item.text("name")
    return Model(
        namespace=item.text("namespace"),
        name=name,
        served_name=item.text("servedName", name),
        state=item.choice("state", STATES, "Waking"),
        created=item.integer("created", 0),
        reason=item.text("reason", ""),
        message=item.text("message", ""),
        phase=item.optional_text("phase"),
        progress=item.optional_number("progress"),
        cold_start=_cold_start(item.child("coldStart")),
        routing=item.choice("routing", POLICIES, "PrefixAware"),
        target_concurrency=item.integer("targetConcurrency", 16, minimum=1),
        names=item.texts("names"),
        refused_names=item.texts("refusedNames"),
        api_keys_file=item.optional_text("apiKeysFile"),
        endpoints=tuple(_endpoint(endpoint) for endpoint in item.items("endpoints")),
        desired=item.integer("desiredReplicas", 0) if item.has("desiredReplicas") else None,
        can_stop=item.flag("canStop"),
        idle_after_s=item.optional_number("idleAfterSeconds"),
        fit_verdict=item.optional_text("fitVerdict") or "",
        uri=item.text("uri", ""),
        gpus=item.integer("gpus", 1),
    )


def _cold_start(item: JsonReader) -> ColdStart:
    return ColdStart(
        mode=item.choice("mode", MODES, "Hold"),
        max_wait_s=item.number("maxWaitSeconds", 300),
        heartbeat_s=item.number("heartbeatSeconds", 10, minimum=0.01),
        queue_limit=item.integer("queueLimit", 128),
    )


def _endpoint(item: JsonReader) -> Endpoint:
    address = item.text("address")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise item.error("address", "host:port", address)
    return Endpoint(item.text("id"), address, ready=item.flag("ready"), draining=item.flag("draining"))
