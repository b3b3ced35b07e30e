"""How a process ended badly, in one word and one sentence: the same on a machine and on a cluster.

Pure: what is left of a process in, a :class:`~.observation.Failure` out. Why a pod has no process at all
(its image, a Secret, a volume) only a cluster can know: ``cluster.observation.failures``.
"""

from __future__ import annotations

import json
from typing import Any

from wisp_operator.core.observation import Failure

LONGEST_LINE = 300
SIGNALS = {137: "SIGKILL", 143: "SIGTERM", 139: "SIGSEGV", 134: "SIGABRT"}
"""Exit codes that are 128 + the signal which ended a process."""


def failure_of(
    exit_code: int, left: str, at: float, *, deadline_s: float | None = None, why: str = ""
) -> Failure:
    """Name how a process ended: by its own last words, else by what stopped it, else by its exit code.

    Args:
        exit_code: its own, or 128 + the signal that ended it.
        left: its termination log, or the end of its output if it wrote none.
        at: when, Unix seconds.
        deadline_s: the start deadline that it missed, None if it missed none.
        why: in words, why it was stopped after its start, if that is known.
    """
    if told := _termination_log(left):
        details = told.get("details") if isinstance(told.get("details"), dict) else None
        return Failure(str(told["reason"]), str(told.get("message", "")), at, exit_code, details or {})
    if deadline_s is not None:
        says = f"The pod was not ready within {deadline_s:g} s (spec.rollout.startupDeadline)."
        return Failure("StartupTimedOut", says, at, exit_code)
    last = f" Its last words: {left.splitlines()[-1][:LONGEST_LINE]}" if left else ""
    if why:
        return Failure("Killed", f"The process was stopped: {why}.{last}", at, exit_code)
    if exit_code in SIGNALS:
        return Failure("Killed", f"The process was killed by {SIGNALS[exit_code]}.{last}", at, exit_code)
    return Failure("Crashed", f"The process ended with exit code {exit_code}.{last}", at, exit_code)


def _termination_log(text: str) -> dict[str, Any] | None:
    """The runtime's last words as its contract has them, or None if they are something else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("reason"), str) else None
