"""The PersistentVolumeClaim that keeps a model's download, for ``cache.type: PVC``."""

from __future__ import annotations

from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import cache_claim, metadata
from wisp_operator.desired.pod.volumes import FETCHED
from wisp_operator.desired.settings import BuildSettings


def needs_claim(model: InferenceModel) -> bool:
    """Whether the model's downloads live in a claim of its own."""
    return model.spec.cache.type == "PVC" and model.spec.model.scheme in FETCHED


def persistent_volume_claim(model: InferenceModel, settings: BuildSettings) -> dict[str, Any]:
    """Build the claim; size, mode and class are the installation's."""
    spec: dict[str, Any] = {
        "accessModes": [settings.claim_access_mode],
        "resources": {"requests": {"storage": settings.claim_size}},
    }
    if settings.claim_storage_class:
        spec["storageClassName"] = settings.claim_storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(model, cache_claim(model)),
        "spec": spec,
    }
