"""The PodMonitor of a model: where a Prometheus operator finds its pods' ``/metrics``."""

from __future__ import annotations

from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import PORT_NAME, metadata, selector


def pod_monitor(model: InferenceModel) -> dict[str, Any]:
    """Build the monitor; only where its CRD exists."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(model),
        "spec": {
            "selector": {"matchLabels": selector(model)},
            "podMetricsEndpoints": [{"port": PORT_NAME, "path": "/metrics"}],
        },
    }
