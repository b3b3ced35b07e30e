"""Says in the log that a pod's process ended without being asked to, once an ending.

What an ending means for the model is ``status``'s business; here it becomes a line for the one who watches.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from wisp_operator.core.observation import Facts, Failure
from wisp_operator.local.processes.pods import Pod

log = logging.getLogger(__name__)

FIRST_SIGNAL = 128
LONGEST_WORDS = 300  # characters of what the process left behind


class Deaths:
    """Remembers of which endings it has told.

    Args:
        are_logs_kept: whether the pods' logs stay when ``wisp up`` ends.
    """

    def __init__(self, *, are_logs_kept: bool) -> None:
        self._told: dict[str, int] = {}
        self._logs: dict[str, Path] = {}  # by model, of the pod that ended last
        self._where = "" if are_logs_kept else " (removed when wisp up ends; --state-dir DIR keeps it)"

    def tell(self, key: str, pods: Iterable[Pod]) -> None:
        """Log the endings of a model's ``pods`` that are new since the last call."""
        for pod in pods:
            if pod.last_failure is not None and pod.failures > self._told.get(pod.name, 0):
                self._told[pod.name] = pod.failures
                self._logs[key] = pod.log
                log.warning(
                    "pod %s %s; starting again; log: %s%s",
                    *(pod.name, how_it_died(pod.last_failure), pod.log, self._where),
                )

    def placed(self, key: str, facts: Facts) -> Facts:
        """The facts with the path of the log that the last failure's sentence speaks of."""
        failure, path = facts.last_failure, self._logs.get(key)
        if failure is None or path is None:
            return facts
        message = failure.message.replace("see its log", f"see its log ({path})")
        return replace(facts, last_failure=replace(failure, message=message))


def how_it_died(failure: Failure) -> str:
    """One ending in words: ``died (signal 9)``, or ``ended (ModelNotFound): …``."""
    number = (failure.exit_code or 0) - FIRST_SIGNAL
    if number in set(signal.Signals):
        return f"died (signal {number})"
    return f"ended ({failure.reason}): {failure.message[:LONGEST_WORDS].rstrip('.')}"
