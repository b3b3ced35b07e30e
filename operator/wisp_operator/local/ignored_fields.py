"""Fields of a manifest that a process of this machine cannot follow: named for the log, or replaced."""

from __future__ import annotations

from dataclasses import replace

from wisp_operator.api import Gpu, InferenceModel
from wisp_operator.api.pod_template import PodTemplate, Resources


def differences(model: InferenceModel) -> list[str]:
    """Return a sentence on fields that are ignored here, and one on Secrets; as far as ``model`` has any."""
    fields, references = ignored(model), secret_references(model)
    sentences = []
    if fields:
        sentences.append(f"only a cluster follows {', '.join(fields)}; ignored here")
    if references:
        sentences.append(
            f"this machine has no Secrets for {', '.join(references)}: variables of the same names count "
            "that the shell of wisp up has"
        )
    return sentences


def ignored(model: InferenceModel) -> list[str]:
    """List the fields that ``model`` sets and only a cluster follows, as users write them."""
    spec, plain = model.spec, Gpu()
    rows = (
        ("spec.resources", spec.resources != Resources()),
        ("spec.podTemplate", spec.pod_template != PodTemplate()),
        ("spec.cache.type", spec.cache.type == "PVC"),
        ("spec.cache.prefetch", spec.cache.prefetch),
        ("spec.gpu.product", bool(spec.gpu.product)),
        ("spec.gpu.memory", spec.gpu.memory is not None),
        ("spec.gpu.nodeSelector", spec.gpu.node_selector != plain.node_selector),
        ("spec.gpu.tolerations", spec.gpu.tolerations != plain.tolerations),
        ("spec.gpu.resourceName", spec.gpu.resource_name != plain.resource_name),
    )
    return [field for field, is_set in rows if is_set]


def secret_references(model: InferenceModel) -> list[str]:
    """List the fields of ``model`` that refer to Secrets, as users write them."""
    fields = ["spec.model.secretRef"] if model.spec.model.secret_ref else []
    variables = enumerate(model.spec.runtime.env)
    return fields + [f"spec.runtime.env[{index}].secretRef" for index, entry in variables if entry.secret_ref]


def on_this_machine(model: InferenceModel) -> InferenceModel:
    """Return the model with a node-local cache: its downloads are in a directory, not in a claim."""
    if model.spec.cache.type != "PVC":
        return model
    return replace(model, spec=replace(model.spec, cache=replace(model.spec.cache, type="NodeLocal")))
