"""Volumes of a pod: its weights by the scheme of the model's URI, a cache, scratch.

``file://``, ``pvc://`` and ``oci://`` are mounted read-only under ``/models``; ``hf://`` and ``s3://`` are
fetched by the runtime into ``/cache``.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import cache_claim
from wisp_operator.desired.settings import BuildSettings
from wisp_plan.gguf.files import SUFFIX

CACHE_DIR = "/cache"
MODELS_DIR = "/models"
FETCHED = ("hf", "s3")


def model_path(model: InferenceModel) -> str:
    """The MODEL argument: a path in the pod, or the URI of what the runtime fetches itself."""
    if model.spec.model.scheme in FETCHED:
        return model.spec.model.uri
    folder = f"{MODELS_DIR}/{model.name}"
    return f"{folder}/{PurePosixPath(model.spec.model.location).name}" if _is_file(model) else folder


def _is_file(model: InferenceModel) -> bool:
    """Whether a GGUF file is mounted alone; its parts, or a tokenizer beside it, need their folder."""
    return model.spec.model.scheme in ("file", "pvc") and model.spec.model.location.endswith(SUFFIX)


def cache_dir(model: InferenceModel) -> str:
    """Folder of downloads in the pod; on a node's disk, which is not the model's alone, the namespace's.

    In such a folder the runtime leaves a part of the disk to the node.
    """
    is_of_node = model.spec.model.scheme in FETCHED and model.spec.cache.type != "PVC"
    return f"{CACHE_DIR}/namespaces/{model.namespace}" if is_of_node else CACHE_DIR


def volumes(model: InferenceModel, settings: BuildSettings) -> list[dict[str, Any]]:
    """The pod's volumes."""
    if model.spec.model.scheme in FETCHED:
        weights = {"name": "cache", **_cache(model, settings)}
    else:
        weights = {"name": "model", **_mounted(model)}
    # CACHE_DIR must be writable even where nothing is fetched: the runtime may keep what it derives there.
    scratch = [] if model.spec.model.scheme in FETCHED else [{"name": "cache", "emptyDir": {}}]
    return [weights, *scratch, {"name": "tmp", "emptyDir": {}}]


def mounts(model: InferenceModel) -> list[dict[str, Any]]:
    """The container's mounts, for the same volumes."""
    container_mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if model.spec.model.scheme in FETCHED:
        return container_mounts
    weights: dict[str, Any] = {"name": "model", "mountPath": model_path(model), "readOnly": True}
    inside = model.spec.model.location.partition("/")[2].strip("/")
    if model.spec.model.scheme == "pvc" and inside:
        weights["subPath"] = inside
    return [weights, *container_mounts]


def _cache(model: InferenceModel, settings: BuildSettings) -> dict[str, Any]:
    """Build the volume that keeps fetched weights, by ``spec.cache.type``."""
    match model.spec.cache.type:
        case "NodeLocal":
            return {"hostPath": {"path": settings.node_cache_dir, "type": "DirectoryOrCreate"}}
        case "PVC":
            return {"persistentVolumeClaim": {"claimName": cache_claim(model)}}
        case _:
            return {"emptyDir": {}}


def _mounted(model: InferenceModel) -> dict[str, Any]:
    """The volume that already holds the weights."""
    location = model.spec.model.location
    match model.spec.model.scheme:
        case "file":
            return {"hostPath": {"path": location, "type": "File" if _is_file(model) else "Directory"}}
        case "pvc":
            return {"persistentVolumeClaim": {"claimName": location.partition("/")[0], "readOnly": True}}
        case _:
            return {"image": {"reference": location, "pullPolicy": "IfNotPresent"}}
