"""Reads what the API server tells of models and their pods. Pure: JSON in, values of :mod:`.snapshot` out.

An InferenceModel's spec is read with the CRD's defaults (crds/inferencemodels.yaml), though the API server
fills them in, because its schema may be older than this gateway. What the spec says at once is believed
before the operator has seen it: a model is suspended when its spec says so, and no longer when it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from wisp_gateway.discovery.api_server import Json
from wisp_gateway.discovery.json_reader import Reader
from wisp_gateway.discovery.snapshot import MODES, POLICIES, STATES, ColdStart, Endpoint, Model
from wisp_gateway.errors import DirectoryError

MODELS_PATH = "/apis/wisp.dev/v1alpha1{}/inferencemodels"
SLICES_PATH = "/apis/discovery.k8s.io/v1{}/endpointslices"
MODEL_LABEL = "wisp.dev/model"
SERVICE_LABEL = "kubernetes.io/service-name"
PORT_NAME = "http"
PHASES = ("schedule", "import", "pull", "weights", "kernels", "firstToken")

_DURATION = re.compile(r"([1-9][0-9]{0,4}(ms|s|m|h)){1,3}")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class ModelObject:
    """An InferenceModel: the model without its pods, and the Secret with its keys, if it has one."""

    model: Model
    secret: str | None


@dataclass(frozen=True)
class Slice:
    """An EndpointSlice: some of one model's pods."""

    model_key: str
    endpoints: tuple[Endpoint, ...]


def read_model(item: Json) -> ModelObject | None:
    """Read an InferenceModel; None if it is being deleted.

    Raises:
        DirectoryError: a field is of the wrong kind; names it.
    """
    metadata, spec, status = (item.get(part) or {} for part in ("metadata", "spec", "status"))
    if metadata.get("deletionTimestamp"):
        return None
    reader = Reader(spec, "spec")
    ready = _ready_condition(status)
    model = Model(
        namespace=metadata["namespace"],
        name=metadata["name"],
        served_name=reader.child("model").text("servedName", metadata["name"]),
        state=_state(spec, status, metadata.get("generation", 0)),
        created=int(datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()),
        reason=str(ready.get("reason", "")),
        message=str(ready.get("message", "")),
        phase=_phase(status),
        cold_start=_cold_start(reader.child("coldStart")),
        routing=reader.child("routing").choice("policy", POLICIES, "PrefixAware"),
        target_concurrency=reader.child("scaling").whole("targetConcurrency", 16, least=1),
    )
    access = reader.child("access")
    secret = access.child("apiKeySecretRef").text("name") if access.has("apiKeySecretRef") else None
    return ModelObject(model, secret)


def read_slice(item: Json) -> Slice | None:
    """Read an EndpointSlice; None if it is of no model's own Service.

    Raises:
        DirectoryError: a field is of the wrong kind; names it.
    """
    metadata = item["metadata"]
    labels = metadata.get("labels", {})
    name = labels.get(MODEL_LABEL, "")
    if not name or labels.get(SERVICE_LABEL) != name:
        return None
    reader = Reader(item, "endpointslice")
    port = next((port for port in reader.items("ports") if port.text("name", "") == PORT_NAME), None)
    endpoints: tuple[Endpoint, ...] = ()
    if port is not None and port.has("port"):
        number = port.whole("port", 0, least=1)
        endpoints = tuple(
            _endpoint(found, number) for found in item.get("endpoints") or () if _has_address(found)
        )
    return Slice(f"{metadata['namespace']}/{name}", endpoints)


def join(slices: Iterable[Slice]) -> tuple[Endpoint, ...]:
    """All pods of one model, each once, in a steady order.

    A pod is in several slices when it has two address families (IPv4 is taken), or for a moment while it
    is moved between slices; then the worse news is the newer: nothing leaves draining again.
    """
    found: dict[str, Endpoint] = {}
    for endpoint in (endpoint for piece in slices for endpoint in piece.endpoints):
        other = found.get(endpoint.id)
        if other is not None:
            first, _ = sorted((other, endpoint), key=lambda one: (one.address.startswith("["), one.address))
            is_draining = other.draining or endpoint.draining
            is_ready = (other.ready or endpoint.ready) and not is_draining
            endpoint = replace(first, ready=is_ready, draining=is_draining)
        found[endpoint.id] = endpoint
    return tuple(found[id] for id in sorted(found))


def seconds(text: str, where: str) -> float:
    """The length of a duration such as ``1m30s``.

    Raises:
        DirectoryError: it is none; names ``where``.
    """
    if not _DURATION.fullmatch(text):
        raise DirectoryError(f"{where}: expected a duration such as 90s, found {text!r}")
    return sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", text))


def _cold_start(reader: Reader) -> ColdStart:
    return ColdStart(
        mode=reader.choice("mode", MODES, "Hold"),
        max_wait_s=seconds(reader.text("maxWait", "5m"), "spec.coldStart.maxWait"),
        heartbeat_s=seconds(reader.text("heartbeat", "10s"), "spec.coldStart.heartbeat"),
        queue_limit=reader.whole("queueLimit", 128, least=1),
    )


def _state(spec: Json, status: Json, generation: int) -> str:
    """The operator's word, unless the spec has changed what it was about."""
    told = status.get("state", "Asleep")
    if spec.get("suspend") is True:
        return "Suspended"
    if told == "Suspended" and spec.get("replicas") != 0:
        return "Asleep"
    if told == "Failed" and status.get("observedGeneration", generation) < generation:
        return "Waking"
    return told if told in STATES else "Waking"


def _ready_condition(status: Json) -> Json:
    found: Json = next((one for one in status.get("conditions", ()) if one.get("type") == "Ready"), {})
    return found


def _phase(status: Json) -> str | None:
    """The phase of a waking model: the first that is not done."""
    done = status.get("coldStart", {}).get("phases", {})
    if status.get("state") != "Waking":
        return None
    return next((phase for phase in PHASES if phase not in done), None)


def _has_address(endpoint: Any) -> bool:
    return isinstance(endpoint, dict) and bool(endpoint.get("addresses"))


def _endpoint(found: Json, port: int) -> Endpoint:
    """One pod. Conditions that are not given count as Kubernetes says: ready, and not terminating."""
    host = str(found["addresses"][0])
    conditions = found.get("conditions") or {}
    is_draining = conditions.get("terminating") is True
    return Endpoint(
        id=str((found.get("targetRef") or {}).get("name") or host),
        address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        ready=conditions.get("ready") is not False and not is_draining,
        draining=is_draining,
    )
