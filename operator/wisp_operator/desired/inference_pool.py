"""The InferencePool of a model: its pods as a backend of the Gateway API Inference Extension.

For those who bring their own gateway. Asked for with the annotation ``wisp.dev/endpoint-picker: NAME:PORT``
on the InferenceModel, which names the Service of an endpoint picker in the same namespace.
"""

from __future__ import annotations

import re
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import RUNTIME_PORT, metadata, selector

ANNOTATION = "wisp.dev/endpoint-picker"


def inference_pool(model: InferenceModel, picker: str) -> dict[str, Any] | None:
    """Build the pool, or None if ``picker`` is not ``NAME:PORT``; only where its CRD exists.

    Source: Gateway API Inference Extension, inference.networking.k8s.io/v1.
    """
    reference = re.fullmatch(r"([a-z]([-a-z0-9]*[a-z0-9])?):([1-9][0-9]{0,4})", picker)
    if reference is None:
        return None
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(model),
        "spec": {
            "selector": {"matchLabels": selector(model)},
            "targetPorts": [{"number": RUNTIME_PORT}],
            "endpointPickerRef": {
                "kind": "Service",
                "name": reference[1],
                "port": {"number": int(reference[3])},
                "failureMode": "FailOpen",
            },
        },
    }
