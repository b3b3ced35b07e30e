"""Say before any request what makes a ``file://`` model impossible to start on this machine.

The cheap part of what a pod would find out: whether the folder, its ``config.json`` and the headers of its
weights can be read. Whether the model fits is :mod:`wisp_operator.core.fit`'s question.
"""

from __future__ import annotations

import time

from wisp_operator.api import InferenceModel
from wisp_operator.core.observation import Failure
from wisp_operator.errors import SourceError
from wisp_operator.local.machine import hardware
from wisp_plan.errors import CheckpointInvalid, ConfigInvalid


def what_is_wrong(model: InferenceModel) -> Failure | None:
    """Look at a model's folder; None if it can be read, or lies elsewhere.

    The failure has the reason that a pod would give: ModelNotFound, ModelUnsupported or WeightsUnreadable.
    """
    if model.spec.model.scheme != "file":
        return None
    files = hardware.files_of(model)
    if files is None:
        return None
    try:
        files.config()
        files.inventory()
    except SourceError as error:
        return Failure("ModelNotFound", str(error), time.time())
    except ConfigInvalid as error:
        return Failure("ModelUnsupported", error.message, time.time())
    except CheckpointInvalid as error:
        return Failure("WeightsUnreadable", error.message, time.time())
    return None
