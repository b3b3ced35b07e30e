"""The Service of a model: its endpoints, by which the gateway finds its pods.

Clients inside the cluster may use it where pods ask for no token.
"""

from __future__ import annotations

from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import PORT_NAME, metadata, selector

SERVICE_PORT = 80


def service(model: InferenceModel) -> dict[str, Any]:
    """Build the Service that spreads port 80 over the model's ready pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(model),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(model),
            "ports": [
                {
                    "name": PORT_NAME,
                    "port": SERVICE_PORT,
                    "targetPort": PORT_NAME,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }
