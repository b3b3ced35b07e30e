"""The PodDisruptionBudget of a model: a drained node takes one of its pods at a time."""

from __future__ import annotations

from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.labels import metadata, selector


def disruption_budget(model: InferenceModel) -> dict[str, Any]:
    """Build the budget; only for models with more than one pod, or no node could ever be drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(model),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(model)}},
    }
