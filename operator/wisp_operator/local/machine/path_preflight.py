"""Preflight of ``file://`` models: whether their files can be used, before any request starts a pod."""

from __future__ import annotations

import time

from wisp_operator.api import InferenceModel
from wisp_operator.core.fit.verdict import FitResult
from wisp_operator.core.observation import Failure


def path_failure(model: InferenceModel, result: FitResult) -> Failure | None:
    """Return the failure of a folder of this machine; None if it can be used, or the model lies elsewhere.

    The failure has the reason that a pod would give: ModelNotFound, ModelUnsupported or WeightsUnreadable.
    """
    if model.spec.model.scheme != "file" or not result.fault:
        return None
    return Failure(result.fault, result.report.message, time.time())
