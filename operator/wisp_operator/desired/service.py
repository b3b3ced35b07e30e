"""The Service of a model: its endpoints, by which the gateway finds its pods.

Headless, since nobody needs its address: the gateway calls pods themselves, and a cluster has far fewer
addresses for Services than a team has models that sleep. Clients inside the cluster may use its name where
pods ask for no token.
"""

from __future__ import annotations

from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import PORT_NAME, RUNTIME_PORT, metadata, selector

NO_ADDRESS = "None"


def service(model: InferenceModel) -> dict[str, Any]:
    """Build the Service whose name stands for the addresses of the model's ready pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(model),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": NO_ADDRESS,
            "selector": selector(model),
            "ports": [
                {
                    "name": PORT_NAME,
                    "port": RUNTIME_PORT,
                    "targetPort": PORT_NAME,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }
