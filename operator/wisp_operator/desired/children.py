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
from wisp_operator.desired.persistent_volume_claim import needs_claim, persistent_volume_claim
from wisp_operator.desired.pod_monitor import pod_monitor
from wisp_operator.desired.service import service
from wisp_operator.desired.settings import BuildSettings


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Inputs of the children besides the model.

    Attributes:
        replicas: pods that the autoscaler decided.
        annotations: annotations of the InferenceModel.
        nodes: host names of nodes that the pods may run on.
        optional_kinds: those of ``PodMonitor`` and ``InferencePool`` whose CRD the cluster has.
        system_namespace: namespace of the gateway and the operator.
        token_digests: digests of the gateway's tokens for this model.
    """

    replicas: int
    annotations: Mapping[str, str]
    nodes: Sequence[str]
    optional_kinds: Collection[str]
    system_namespace: str
    token_digests: Sequence[str] = ()


def children(model: InferenceModel, context: BuildContext, settings: BuildSettings) -> list[dict[str, Any]]:
    """Build them all, in the order to apply them; the Deployment first, since a request may wait for it.

    Pods of an InferencePool ask for no token: the gateway there is not ours.
    """
    pool = None
    if "InferencePool" in context.optional_kinds:
        pool = inference_pool(model, context.annotations.get(ANNOTATION, ""))
    digests = () if pool else context.token_digests
    manifests = [deployment(model, context.replicas, settings, digests), service(model)]
    manifests.append(network_policy(model, context.system_namespace, asks_tokens=bool(digests)))
    if needs_claim(model):
        manifests.append(persistent_volume_claim(model, settings))
    if context.replicas > 1:
        manifests.append(disruption_budget(model))
    if "PodMonitor" in context.optional_kinds:
        manifests.append(pod_monitor(model))
    manifests += [pool] if pool else []
    return [*manifests, *cache_jobs(model, context.nodes, settings)]
