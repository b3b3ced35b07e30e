"""Fields of a manifest that a process of this machine cannot follow, for a line of the log."""

from __future__ import annotations

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
