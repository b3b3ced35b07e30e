"""Rules of ``spec.resources`` and ``spec.podTemplate``: consistent amounts, and metadata of the operator."""

from __future__ import annotations

from wisp_operator.api.pod_template import Resources
from wisp_operator.api.rule import Rule

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
OWN_LABELS = ("wisp.dev/", "app.kubernetes.io/")
OWN_ANNOTATIONS = (
    *("wisp.dev/", DELETION_COST),
    *("container.apparmor.security.beta.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/"),
)


def _is_ordered(resources: Resources) -> bool:
    """Whether no request is above its limit."""
    requests, limits = resources.requests, resources.limits
    if requests.cpu and limits.cpu and requests.cpu.millicores > limits.cpu.millicores:
        return False
    sizes = ((requests.memory, limits.memory), (requests.ephemeral_storage, limits.ephemeral_storage))
    return all(not (request and limit) or request.bytes <= limit.bytes for request, limit in sizes)


POD_RULES: tuple[Rule, ...] = (
    Rule(
        "spec.resources",
        "spec.resources: a request is above its limit, and no node would take such a pod: lower the "
        "request or raise the limit.",
        ("spec.resources",),
        lambda m: _is_ordered(m.spec.resources),
    ),
    Rule(
        "spec.podTemplate",
        "spec.podTemplate.labels must not set wisp.dev/*, app.kubernetes.io/* or pod-template-hash, by which "
        "the model's pods are known: choose other keys.",
        ("spec.podTemplate.labels",),
        lambda m: (
            not any(
                key.startswith(OWN_LABELS) or key == "pod-template-hash" for key in m.spec.pod_template.labels
            )
        ),
    ),
    Rule(
        "spec.podTemplate",
        "spec.podTemplate.annotations must not set wisp.dev/*, the pod's deletion cost, or its seccomp or "
        "AppArmor profile, which are the operator's: remove them.",
        ("spec.podTemplate.annotations",),
        lambda m: not any(key.startswith(OWN_ANNOTATIONS) for key in m.spec.pod_template.annotations),
    ),
)
