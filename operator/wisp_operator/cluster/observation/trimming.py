"""Objects as the caches keep them: only what is read, so that a tenant's large objects cost no memory here.

Pure. An object may have 1.5 MiB, most of it annotations, variables of containers and managed fields, and
anybody may give theirs the label that we watch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from wisp_operator.api import KIND
from wisp_operator.desired.labels import MODEL_LABEL

METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"),
    *("deletionTimestamp", "ownerReferences", "labels", "annotations"),
)
LABELS = (MODEL_LABEL, "pod-template-hash")
ANNOTATIONS = ("wisp.dev/", "controller.kubernetes.io/")
MAX_VALUES = 10_000  # of an object; our own have some hundred, and 100,000 short ones take 25 MiB
CONTAINER = ("name", "image", "resources", "startupProbe", "volumeMounts")
VOLUME = ("name", "image", "persistentVolumeClaim")

Body = Mapping[str, Any]


def trimmed(body: Body) -> dict[str, Any]:
    """Keep the part of an object that is read."""
    kind = body.get("kind")
    kept = {key: body[key] for key in ("apiVersion", "kind") if key in body}
    kept["metadata"] = _metadata(body["metadata"], has_all_labels=kind == "Node")
    if kind == "Node":
        return {**kept, "status": {"allocatable": dict(body.get("status", {}).get("allocatable", {}))}}
    if kind != KIND and not any(ref.get("controller") for ref in kept["metadata"].get("ownerReferences", ())):
        return kept  # a stranger's: its name and version are enough
    content = {key: body[key] for key in ("spec", "status") if key in body}
    if kind == "Pod" and "spec" in content:
        content["spec"] = _pod_spec(content["spec"])
    return {**kept, **content} if _has_at_most(content, MAX_VALUES) else kept


def _has_at_most(content: Body, limit: int) -> bool:
    """Whether all maps and lists of ``content`` together hold at most ``limit`` values."""
    count = 0
    rest: list[Mapping[str, Any] | list[Any]] = [content]
    while rest and count <= limit:
        part = rest.pop()
        count += len(part)
        inner = part.values() if isinstance(part, Mapping) else part
        rest += [value for value in inner if isinstance(value, Mapping | list)]
    return count <= limit


def _metadata(metadata: Body, *, has_all_labels: bool) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key in METADATA}
    annotations = metadata.get("annotations", {})
    kept["annotations"] = {key: value for key, value in annotations.items() if key.startswith(ANNOTATIONS)}
    if "labels" in kept and not has_all_labels:
        kept["labels"] = _only(kept["labels"], LABELS)
    return kept


def _pod_spec(spec: Body) -> dict[str, Any]:
    containers = [_only(container, CONTAINER) for container in spec.get("containers", ())[:1]]
    volumes = [_only(volume, VOLUME) for volume in spec.get("volumes", ()) if len(_only(volume, VOLUME)) > 1]
    return {**_only(spec, ("nodeName",)), "containers": containers, "volumes": volumes}


def _only(document: Body, names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key in names}
