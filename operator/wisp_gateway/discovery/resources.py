"""Parse InferenceModels and EndpointSlices. Pure: JSON in, values of :mod:`.snapshot` out.

An InferenceModel's spec is read with the CRD's defaults (crds/inferencemodels.yaml), though the API server
fills them in, because its schema may be older than this gateway. A change of ``spec.suspend`` counts at once,
before the operator has seen it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from wisp_gateway.discovery.api_server import Json
from wisp_gateway.discovery.json_reader import JsonReader
from wisp_gateway.discovery.snapshot import MODES, POLICIES, STATES, ColdStart, Endpoint, Model
from wisp_gateway.errors import DiscoveryError

MODELS_PATH = "/apis/wisp.dev/v1alpha1{}/inferencemodels"
SLICES_PATH = "/apis/discovery.k8s.io/v1{}/endpointslices"
MODEL_LABEL = "wisp.dev/model"
SERVICE_LABEL = "kubernetes.io/service-name"
PORT_NAME = "http"
# As many as spec.scaling.max allows.
MAX_PODS = 1000
# A model's Service selects pods, so it has addresses; a slice of host names was written by somebody else.
ADDRESS_TYPES = ("IPv4", "IPv6")
PHASES = ("schedule", "import", "pull", "weights", "kernels", "firstToken")

_DURATION = re.compile(r"([1-9][0-9]{0,4}(ms|s|m|h)){1,3}")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class ModelObject:
    """An InferenceModel: the model without its pods, and the name of the Secret with its keys, or None."""

    model: Model
    secret: str | None


@dataclass(frozen=True)
class EndpointSlice:
    """Some of one model's pods."""

    model_key: str
    endpoints: tuple[Endpoint, ...]


def read_model(item: Json) -> ModelObject | None:
    """Read an InferenceModel; None if it is being deleted.

    Raises:
        DiscoveryError: a field is of the wrong kind; names it.
    """
    metadata, spec, status = (item.get(part) or {} for part in ("metadata", "spec", "status"))
    if metadata.get("deletionTimestamp"):
        return None
    reader = JsonReader(spec, "spec")
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
        desired=_desired(status),
        idle_after_s=_idle_after_s(reader),
        fit_verdict=JsonReader(status, "status").child("fit").text("verdict", ""),
        cold_start=_cold_start(reader.child("coldStart")),
        routing=reader.child("routing").choice("policy", POLICIES, "PrefixAware"),
        target_concurrency=reader.child("scaling").integer("targetConcurrency", 16, minimum=1),
        names=JsonReader(status, "status").texts("names"),
        refused_names=JsonReader(status, "status").texts("refusedNames"),
        uri=reader.child("model").text("uri", ""),
        gpus=reader.child("gpu").integer("count", 1),
    )
    access = reader.child("access")
    secret = access.child("apiKeySecretRef").text("name") if access.has("apiKeySecretRef") else None
    return ModelObject(model, secret)


def read_slice(item: Json) -> EndpointSlice | None:
    """Read an EndpointSlice; None if it does not belong to a model's own Service, or has host names.

    Raises:
        DiscoveryError: a field is of the wrong kind; names it.
    """
    metadata = item["metadata"]
    labels = metadata.get("labels", {})
    name = labels.get(MODEL_LABEL, "")
    if not name or labels.get(SERVICE_LABEL) != name or item.get("addressType") not in ADDRESS_TYPES:
        return None
    reader = JsonReader(item, "endpointslice")
    port = next((port for port in reader.items("ports") if port.text("name", "") == PORT_NAME), None)
    endpoints: tuple[Endpoint, ...] = ()
    if port is not None and port.has("port"):
        number = port.integer("port", 0, minimum=1)
        endpoints = tuple(
            _endpoint(entry, number) for entry in item.get("endpoints") or () if _has_address(entry)
        )
    return EndpointSlice(f"{metadata['namespace']}/{name}", endpoints)


def merge_slices(slices: Iterable[EndpointSlice]) -> tuple[Endpoint, ...]:
    """Merge the slices of one model into its pods, each once, sorted by id.

    A pod is in several slices when it has two address families (IPv4 is taken), or briefly while it moves
    between slices; then the worse state is the newer: draining is never undone.
    """
    merged: dict[str, Endpoint] = {}
    for endpoint in (endpoint for endpoint_slice in slices for endpoint in endpoint_slice.endpoints):
        other = merged.get(endpoint.id)
        if other is not None:
            first, _ = sorted(
                (other, endpoint), key=lambda item: (item.address.startswith("["), item.address)
            )
            is_draining = other.draining or endpoint.draining
            is_ready = (other.ready or endpoint.ready) and not is_draining
            endpoint = replace(first, ready=is_ready, draining=is_draining)
        merged[endpoint.id] = endpoint
    return tuple(merged[id] for id in sorted(merged)[:MAX_PODS])


def seconds(text: str, where: str) -> float:
    """Return the seconds of a duration such as ``1m30s``.

    Raises:
        DiscoveryError: not a duration; names ``where``.
    """
    if not _DURATION.fullmatch(text):
        raise DiscoveryError(f"{where}: expected a duration such as 90s, found {text!r}")
    return sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", text))


def _cold_start(reader: JsonReader) -> ColdStart:
    return ColdStart(
        mode=reader.choice("mode", MODES, "Hold"),
        max_wait_s=seconds(reader.text("maxWait", "5m"), "spec.coldStart.maxWait"),
        heartbeat_s=seconds(reader.text("heartbeat", "10s"), "spec.coldStart.heartbeat"),
        queue_limit=reader.integer("queueLimit", 128, minimum=1),
    )


def _idle_after_s(spec: JsonReader) -> float | None:
    """Return the idle seconds after which a model goes to zero; None if it never does, or in a newer form.

    They are shown and nothing else, so they must not keep a model from being served.
    """
    scaling = spec.child("scaling")
    try:
        if spec.has("replicas") or scaling.integer("min", 0):
            return None
        return seconds(scaling.text("idleAfter", "10m"), "spec.scaling.idleAfter")
    except DiscoveryError:
        return None


def _state(spec: Json, status: Json, generation: int) -> str:
    """Return the operator's state, unless a newer spec overrides it."""
    reported = status.get("state", "Asleep")
    if spec.get("suspend") is True:
        return "Suspended"
    if reported == "Suspended" and spec.get("replicas") != 0:
        return "Asleep"
    if reported == "Failed" and status.get("observedGeneration", generation) < generation:
        return "Waking"
    return reported if reported in STATES else "Waking"


def _ready_condition(status: Json) -> Json:
    conditions: list[Json] = status.get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == "Ready"), {})


def _phase(status: Json) -> str | None:
    """Return the phase of a waking model: the first that is not done."""
    done = status.get("coldStart", {}).get("phases", {})
    if status.get("state") != "Waking":
        return None
    return next((phase for phase in PHASES if phase not in done), None)


def _desired(status: Json) -> int | None:
    """Return the number of pods that the operator wants, if it has written one."""
    wanted = status.get("desiredReplicas")
    return wanted if type(wanted) is int and wanted >= 0 else None


def _has_address(endpoint: Any) -> bool:
    return isinstance(endpoint, dict) and bool(endpoint.get("addresses"))


def _endpoint(entry: Json, port: int) -> Endpoint:
    """Read one pod. Absent conditions have Kubernetes' defaults: ready, not terminating."""
    host = str(entry["addresses"][0])
    conditions = entry.get("conditions") or {}
    is_draining = conditions.get("terminating") is True
    return Endpoint(
        id=str((entry.get("targetRef") or {}).get("name") or host),
        address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        ready=conditions.get("ready") is not False and not is_draining,
        draining=is_draining,
    )
