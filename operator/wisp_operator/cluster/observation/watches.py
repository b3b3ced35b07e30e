"""Watches and indexes by kopf. They change no object: no finalizer, no annotation, no status.

Only ``index`` and ``event`` handlers are registered, since those leave no trace in the cluster; an event
names the model to reconcile (:mod:`wisp_operator.cluster.reconcile`), its content decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import kopf

from wisp_operator.api import KIND
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.observation.caches import Caches, of_model
from wisp_operator.cluster.observation.trimming import trimmed
from wisp_operator.desired.labels import MODEL_LABEL

IDLE_S = 5.0
RETRIES_S = (0.2, 0.5, 1.0, 2.0, *[3.0] * 1200)  # an hour without an API server; then this process ends

Changed = Callable[[str], None]
Body = Mapping[str, Any]


def kinds(optional: Collection[str], *, is_clusterwide: bool) -> list[str]:
    """Name the kinds to watch: of the optional ones those the cluster has, and nodes where all is watched."""
    return [
        kind.name
        for kind in KINDS.values()
        if (not kind.is_optional or kind.name in optional) and (is_clusterwide or kind.name != "Node")
    ]


def registry(
    caches: Caches,
    watched: Collection[str],
    changed: Changed,
    nodes_changed: Callable[[], None],
) -> kopf.OperatorRegistry:
    """Register the watches.

    Args:
        caches: caches that receive the indexes at start.
        watched: names of the :data:`KINDS` to watch.
        changed: callback, given a model's key when it, or an object of it, changed.
        nodes_changed: callback for a change of the nodes' labels or GPUs.
    """
    handlers = kopf.OperatorRegistry()
    kopf.on.login(id="login", registry=handlers)(kopf.login_via_client)
    for kind in watched:
        _index(handlers, kind)
        _on_event(handlers, kind, caches, changed, nodes_changed)
    _attach(handlers, caches, watched)
    return handlers


def settings() -> kopf.OperatorSettings:
    """kopf's settings: watch only what carries our label, post nothing, scan nothing."""
    options = kopf.OperatorSettings()
    options.posting.enabled = False
    options.peering.standalone = True
    options.scanning.disabled = True
    options.queueing.idle_timeout = IDLE_S
    options.networking.error_backoffs = RETRIES_S
    for kind in KINDS:
        if kind not in (KIND, "Node"):
            options.watching.label_selectors[KINDS[kind].selector] = MODEL_LABEL
    return options


def model_key(kind: str, body: Body) -> str:
    """``namespace/name`` of the model that an object is, or belongs to."""
    metadata = body["metadata"]
    name = metadata["name"] if kind == KIND else metadata.get("labels", {}).get(MODEL_LABEL, "")
    return f"{metadata.get('namespace', '')}/{name}"


def _index(handlers: kopf.OperatorRegistry, kind: str) -> None:
    def index(body: kopf.Body, **_: Any) -> dict[str, dict[str, Any]]:
        document = plain(body)
        document.setdefault("kind", kind)
        document.setdefault("apiVersion", KINDS[kind].version)
        metadata = document["metadata"]
        own = f"{metadata.get('namespace', '')}/{metadata['name']}"
        # Pods are indexed by model, everything else by its own name; what is pruned by both.
        model, kept = model_key(kind, document), trimmed(document)
        if KINDS[kind].is_pruned:
            return {own: kept, of_model(model): kept}
        return {model if kind == "Pod" else own: kept}

    kopf.index(*KINDS[kind].selector, id=kind, registry=handlers)(index)


def _on_event(
    handlers: kopf.OperatorRegistry,
    kind: str,
    caches: Caches,
    changed: Changed,
    nodes_changed: Callable[[], None],
) -> None:
    capacities: dict[str, Any] = {}

    async def on_event(body: kopf.Body, type: str | None, **_: Any) -> None:
        caches.is_filled = True
        document = plain(body)
        if kind != "Node":
            changed(model_key(kind, document))
            return
        # Nodes report every few seconds; only labels and GPUs matter.
        name, capacity = document["metadata"]["name"], None if type == "DELETED" else _capacity(document)
        if capacities.get(name) != capacity:
            capacities[name] = capacity
            nodes_changed()

    kopf.on.event(*KINDS[kind].selector, id=f"event-{kind}", registry=handlers)(on_event)


def _capacity(node: Body) -> tuple[Any, ...]:
    allocatable = node.get("status", {}).get("allocatable", {})
    gpus = sorted((key, value) for key, value in allocatable.items() if "/" in key)
    return tuple(sorted(node["metadata"].get("labels", {}).items())), tuple(gpus)


def _attach(handlers: kopf.OperatorRegistry, caches: Caches, watched: Iterable[str]) -> None:
    async def attach(**given: Any) -> None:
        caches.attach({kind: given[kind] for kind in watched})

    kopf.on.startup(id="attach", registry=handlers)(attach)


def plain(body: Any) -> dict[str, Any]:
    """A kopf body as plain maps, which compare and copy faster than its views."""
    return {key: _plain(value) for key, value in dict(body).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
