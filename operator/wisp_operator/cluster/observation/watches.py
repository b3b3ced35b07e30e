"""kopf's part: watches and indexes. It changes no object: no finalizer, no annotation, no status.

Only ``index`` and ``event`` handlers are registered, since those leave no trace in the cluster; what is to
be done is decided by looking (:mod:`wisp_operator.cluster.reconcile`), never by an event's content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import kopf

from wisp_operator.api import KIND
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.desired.labels import MODEL_LABEL

IDLE_S = 5.0
RETRIES_S = (0.2, 0.5, 1.0, 2.0, *[3.0] * 1200)  # an hour without an API server; then this process ends

Changed = Callable[[str], None]
Body = Mapping[str, Any]


def registry(
    caches: Caches,
    optional: Collection[str],
    changed: Changed,
    nodes_changed: Callable[[], None],
) -> kopf.OperatorRegistry:
    """Register what is watched.

    Args:
        caches: given the indexes at start.
        optional: names of the optional :data:`KINDS` that the cluster has.
        changed: called with a model's key when it, or something of it, changed.
        nodes_changed: called when what the nodes offer may have changed.
    """
    found = kopf.OperatorRegistry()
    kopf.on.login(id="login", registry=found)(kopf.login_via_client)
    kinds = [kind.name for kind in KINDS.values() if not kind.is_optional or kind.name in optional]
    for kind in kinds:
        _index(found, kind)
        _spy(found, kind, caches, changed, nodes_changed)
    _attach(found, caches, kinds)
    return found


def settings() -> kopf.OperatorSettings:
    """kopf's settings: watch only what carries our label, post nothing, scan nothing."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.peering.standalone = True
    found.scanning.disabled = True
    found.queueing.idle_timeout = IDLE_S
    found.networking.error_backoffs = RETRIES_S
    for kind in KINDS:
        if kind not in (KIND, "Node"):
            found.watching.label_selectors[KINDS[kind].selector] = MODEL_LABEL
    return found


def trimmed(body: Body) -> dict[str, Any]:
    """The part of an object that we read; a hundred models cost memory mostly by what is left out here."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    annotations = metadata.get("annotations", {})
    kept = {key: value for key, value in annotations.items() if not key.startswith("kubectl.kubernetes.io/")}
    metadata["annotations"] = kept
    found = {key: body[key] for key in ("apiVersion", "kind", "spec", "status") if key in body}
    found["metadata"] = metadata
    if body.get("kind") == "Node":
        found["status"] = {"allocatable": dict(body.get("status", {}).get("allocatable", {}))}
        found.pop("spec", None)
    return found


def model_key(kind: str, body: Body) -> str:
    """``namespace/name`` of the model that an object is, or belongs to."""
    metadata = body["metadata"]
    name = metadata["name"] if kind == KIND else metadata.get("labels", {}).get(MODEL_LABEL, "")
    return f"{metadata.get('namespace', '')}/{name}"


def _index(found: kopf.OperatorRegistry, kind: str) -> None:
    def index(body: kopf.Body, **_: Any) -> dict[str, dict[str, Any]]:
        document = plain(body)
        document.setdefault("kind", kind)
        document.setdefault("apiVersion", KINDS[kind].version)
        metadata = document["metadata"]
        own = f"{metadata.get('namespace', '')}/{metadata['name']}"
        # Pods are asked for by model, everything else by its own name.
        return {model_key(kind, document) if kind == "Pod" else own: trimmed(document)}

    kopf.index(*KINDS[kind].selector, id=kind, registry=found)(index)


def _spy(
    found: kopf.OperatorRegistry,
    kind: str,
    caches: Caches,
    changed: Changed,
    nodes_changed: Callable[[], None],
) -> None:
    offers: dict[str, Any] = {}

    async def spy(body: kopf.Body, type: str | None, **_: Any) -> None:
        caches.is_filled = True
        document = plain(body)
        if kind != "Node":
            changed(model_key(kind, document))
            return
        # Nodes report every few seconds; only what they offer matters.
        name, offer = document["metadata"]["name"], None if type == "DELETED" else _offer(document)
        if offers.get(name) != offer:
            offers[name] = offer
            nodes_changed()

    kopf.on.event(*KINDS[kind].selector, id=f"spy-{kind}", registry=found)(spy)


def _offer(node: Body) -> tuple[Any, ...]:
    allocatable = node.get("status", {}).get("allocatable", {})
    gpus = sorted((key, value) for key, value in allocatable.items() if "/" in key)
    return tuple(sorted(node["metadata"].get("labels", {}).items())), tuple(gpus)


def _attach(found: kopf.OperatorRegistry, caches: Caches, kinds: Iterable[str]) -> None:
    async def attach(**given: Any) -> None:
        caches.attach({kind: given[kind] for kind in kinds})

    kopf.on.startup(id="attach", registry=found)(attach)


def plain(body: Any) -> dict[str, Any]:
    """A kopf body as plain maps, which compare and copy faster than its views."""
    return {key: _plain(value) for key, value in dict(body).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
