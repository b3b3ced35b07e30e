"""Names and labels of the objects that belong to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wisp_operator.api import API_VERSION, KIND, InferenceModel

MODEL_LABEL = "wisp.dev/model"
TEMPLATE_DIGEST = "wisp.dev/template"
"""Annotation of pods: digest of the template that they were made from."""
PORT_NAME = "http"
RUNTIME_PORT = 8000


def selector(model: InferenceModel) -> dict[str, str]:
    """Labels that only this model's pods carry; a Deployment's selector never changes."""
    return {MODEL_LABEL: model.name}


def selector_text(model: InferenceModel) -> str:
    """The same as text, for ``status.selector`` and ``kubectl get pods -l``."""
    return ",".join(f"{key}={value}" for key, value in selector(model).items())


def labels(model: InferenceModel) -> dict[str, str]:
    """Labels of every object of this model."""
    return {
        "app.kubernetes.io/name": "wisp-runtime",
        "app.kubernetes.io/instance": model.name,
        "app.kubernetes.io/component": "model",
        "app.kubernetes.io/managed-by": "wisp",
        **selector(model),
    }


def pod_metadata(model: InferenceModel, own: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of a pod template: the model's labels and annotations; ``own`` labels outrank the former."""
    template = model.spec.pod_template
    document: dict[str, Any] = {"labels": {**template.labels, **own}}
    if template.annotations:
        document["annotations"] = dict(template.annotations)
    return document


def metadata(model: InferenceModel, name: str = "") -> dict[str, Any]:
    """Metadata of a child: deleted with the model, once the cluster has given the model a uid."""
    document: dict[str, Any] = {
        "name": name or model.name,
        "namespace": model.namespace,
        "labels": labels(model),
    }
    if model.uid:
        document["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": model.name,
                "uid": model.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return document


def cache_claim(model: InferenceModel) -> str:
    """Name of the claim that keeps downloads for ``cache.type: PVC``."""
    return f"{model.name}-cache"
