"""Preflight of ``file://`` models: check the path before any request starts a pod.

The cheap part of a pod's own checks: the folder, its ``config.json`` and the headers of its weights are
readable. :mod:`wisp_operator.core.fit` checks whether the model fits.
"""

from __future__ import annotations

import time

from wisp_operator.api import InferenceModel
from wisp_operator.core.observation import Failure
from wisp_operator.errors import SourceError
from wisp_operator.local.machine import hardware
from wisp_plan.errors import CheckpointInvalid, ConfigInvalid


def path_failure(model: InferenceModel) -> Failure | None:
    """Check a model's folder; None if it can be read, or lies elsewhere.

    The failure has the reason that a pod would give: ModelNotFound, ModelUnsupported or WeightsUnreadable.
    """
    if model.spec.model.scheme != "file":
        return None
    files = hardware.files_of(model)
    if files is None:
        return None
    try:
        files.config()
        files.tensors()
    except SourceError as error:
        return Failure("ModelNotFound", str(error), time.time())
    except ConfigInvalid as error:
        return Failure("ModelUnsupported", error.message, time.time())
    except CheckpointInvalid as error:
        return Failure("WeightsUnreadable", error.message, time.time())
    return None
