"""Preflight of ``file://`` models: whether their files can be used, before any request starts a pod.

A folder that cannot be used, and a model that does not fit, are checked again ever more rarely, and soon
where requests ask for them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from wisp_operator.api import InferenceModel
from wisp_operator.core.fit.verdict import FitResult
from wisp_operator.core.observation import Failure

FIRST_PAUSE_S = 2.0
MAX_PAUSE_S = 32.0
DURATION_SHARE = 4  # pause in durations of the check before it, at least


@dataclass(frozen=True, slots=True)
class Recheck:
    """Earliest time of a model's next check.

    Attributes:
        asked_at: Unix seconds for a model that requests ask for.
        at: Unix seconds for one that nobody asks for.
        pause_s: seconds between the last check and ``at``.
    """

    asked_at: float
    at: float
    pause_s: float

    def is_due(self, now: float, *, is_asked: bool) -> bool:
        """Return whether to check at ``now`` (Unix seconds)."""
        return now >= (self.asked_at if is_asked else self.at)


def next_check(before: Recheck | None, now: float, took_s: float) -> Recheck:
    """Return the time of the next check after one that ended at ``now`` and took ``took_s``."""
    soonest_s = max(FIRST_PAUSE_S, DURATION_SHARE * took_s)
    pause_s = soonest_s if before is None else min(MAX_PAUSE_S, max(soonest_s, 2 * before.pause_s))
    return Recheck(now + soonest_s, now + pause_s, pause_s)


def path_failure(model: InferenceModel, result: FitResult) -> Failure | None:
    """Return the failure of a folder of this machine; None if it can be used, or the model lies elsewhere.

    The failure has the reason that a pod would give: ModelNotFound, ModelUnsupported or WeightsUnreadable.
    """
    if model.spec.model.scheme != "file" or not result.fault:
        return None
    return Failure(result.fault, result.report.message, time.time())
