"""Everything that belongs to one model on a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.cache_job import cache_jobs
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.disruption_budget import disruption_budget
from wisp_operator.desired.inference_pool import ANNOTATION, inference_pool
from wisp_operator.desired.network_policy import network_policy
from wisp_operator.desired.persistent_volume_claim import claim, needs_claim
from wisp_operator.desired.pod_monitor import pod_monitor
from wisp_operator.desired.service import service
from wisp_operator.desired.settings import BuildSettings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the children depend on besides the model.

    Attributes:
        replicas: pods that the autoscaler decided.
        annotations: of the InferenceModel.
        nodes: host names of nodes that the pods may run on.
        optional_kinds: those of ``PodMonitor`` and ``InferencePool`` whose CRD the cluster has.
        system_namespace: where the gateway and the operator run.
    """

    replicas: int
    annotations: Mapping[str, str]
    nodes: Sequence[str]
    optional_kinds: Collection[str]
    system_namespace: str


def children(model: InferenceModel, around: Surroundings, settings: BuildSettings) -> list[dict[str, Any]]:
    """Build them all, in the order to apply them; the Deployment first, since a request may wait for it."""
    found = [deployment(model, around.replicas, settings), service(model)]
    found.append(network_policy(model, around.system_namespace))
    if needs_claim(model):
        found.append(claim(model, settings))
    if around.replicas > 1:
        found.append(disruption_budget(model))
    if "PodMonitor" in around.optional_kinds:
        found.append(pod_monitor(model))
    if "InferencePool" in around.optional_kinds:
        pool = inference_pool(model, around.annotations.get(ANNOTATION, ""))
        found += [pool] if pool else []
    return [*found, *cache_jobs(model, around.nodes, settings)]
