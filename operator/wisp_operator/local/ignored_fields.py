"""Fields of a manifest that a process of this machine cannot follow: named for the log, or replaced."""

from __future__ import annotations

from dataclasses import replace

from wisp_operator.api import Gpu, InferenceModel
from wisp_operator.api.pod_template import PodTemplate, Resources


def ignored(model: InferenceModel) -> list[str]:
    """List the fields that ``model`` sets and only a cluster follows, as users write them."""
    spec, plain = model.spec, Gpu()
    rows = (
        ("spec.resources", spec.resources != Resources()),
        ("spec.podTemplate", spec.pod_template != PodTemplate()),
        ("spec.gpu.nodeSelector", spec.gpu.node_selector != plain.node_selector),
        ("spec.gpu.tolerations", spec.gpu.tolerations != plain.tolerations),
        ("spec.gpu.resourceName", spec.gpu.resource_name != plain.resource_name),
    )
    return [field for field, is_set in rows if is_set]


def on_this_machine(model: InferenceModel) -> InferenceModel:
    """Return the model with a node-local cache: its downloads are in a directory, not in a claim."""
    if model.spec.cache.type != "PVC":
        return model
    return replace(model, spec=replace(model.spec, cache=replace(model.spec.cache, type="NodeLocal")))
