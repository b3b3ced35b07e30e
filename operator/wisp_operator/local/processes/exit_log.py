"""Log each unexpected exit of a pod's process, once.

``core.status`` decides what an exit means for the model; here it becomes a line of the log.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from wisp_operator.core.observation import Failure, Observation
from wisp_operator.local.processes.pods import Pod

log = logging.getLogger(__name__)

FIRST_SIGNAL = 128
MAX_MESSAGE_CHARS = 300  # length of the failure's message


class ExitLog:
    """Remembers the exits already logged.

    Args:
        are_logs_kept: true if the pods' logs stay when ``wisp up`` ends.
    """

    def __init__(self, *, are_logs_kept: bool) -> None:
        self._logged: dict[str, int] = {}
        self._logs: dict[str, Path] = {}  # by model, of the pod that ended last
        self._retention_note = (
            "" if are_logs_kept else " (removed when wisp up ends; --state-dir DIR keeps it)"
        )

    def log_new(self, key: str, pods: Iterable[Pod]) -> None:
        """Log the exits of a model's ``pods`` that are new since the last call."""
        for pod in pods:
            if pod.last_failure is not None and pod.failures > self._logged.get(pod.name, 0):
                self._logged[pod.name] = pod.failures
                self._logs[key] = pod.log
                log.warning(
                    "pod %s %s; starting again; log: %s%s",
                    *(pod.name, describe_exit(pod.last_failure), pod.log, self._retention_note),
                )

    def with_log_path(self, key: str, observation: Observation) -> Observation:
        """Add the path of the log to the last failure's message that refers to it."""
        failure, path = observation.last_failure, self._logs.get(key)
        if failure is None or path is None:
            return observation
        message = failure.message.replace("see its log", f"see its log ({path})")
        return replace(observation, last_failure=replace(failure, message=message))


def describe_exit(failure: Failure) -> str:
    """Describe one exit: ``died (signal 9)``, or ``ended (ModelNotFound): …``."""
    number = (failure.exit_code or 0) - FIRST_SIGNAL
    if number in set(signal.Signals):
        return f"died (signal {number})"
    return f"ended ({failure.reason}): {failure.message[:MAX_MESSAGE_CHARS].rstrip('.')}"
