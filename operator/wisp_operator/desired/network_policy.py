"""The NetworkPolicy of a model: allowed callers of its pods, and addresses that they may reach.

A model without API keys whose pods ask for no token is open to its own namespace, like its Service; any other
is reached through the gateway alone.
"""

from __future__ import annotations

from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import PORT_NAME, metadata, selector
from wisp_operator.desired.pod.volumes import FETCHED

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policy(
    model: InferenceModel, system_namespace: str, *, asks_tokens: bool = False
) -> dict[str, Any]:
    """Build the policy of a model's pods.

    Args:
        model: owner of the pods; pods that fetch their weights may reach any address, all others none.
        asks_tokens: whether the pods answer the gateway alone.
        system_namespace: namespace of the gateway, the operator and the collector of metrics.
    """
    callers: list[dict[str, Any]] = [
        {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: system_namespace}}}
    ]
    if model.spec.access.api_key_secret_ref is None and not asks_tokens:
        callers.append({"podSelector": {}})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(model),
        "spec": {
            "podSelector": {"matchLabels": selector(model)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": callers, "ports": [{"protocol": "TCP", "port": PORT_NAME}]}],
            "egress": [{}] if model.spec.model.scheme in FETCHED else [],
        },
    }
