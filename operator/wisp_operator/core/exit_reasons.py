"""Exit reasons: the end of a process in one word and one sentence, the same on a machine and on a cluster.

Pure: an exit code and a termination log in, a :class:`~.observation.Failure` out. A pod without any process
(its image, a Secret, a volume) exists on a cluster alone: ``cluster.observation.failures``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from wisp_operator.core.observation import Failure

MAX_LINE_CHARS = 300
MAX_MESSAGE_CHARS = 2048
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
SIGNALS = {137: "SIGKILL", 143: "SIGTERM", 139: "SIGSEGV", 134: "SIGABRT"}
"""Exit codes that are 128 + the signal which ended a process."""


def failure_of(
    exit_code: int, output: str, at: float, *, deadline_s: float | None = None, why: str = ""
) -> Failure:
    """Name the end of a process: by its termination log, else by what stopped it, else by its exit code.

    Args:
        exit_code: exit code of the process, or 128 + the signal that ended it.
        output: termination log, or the end of the process's output if it wrote none.
        at: time of the end, Unix seconds.
        deadline_s: start deadline that it missed, None if it missed none.
        why: reason in words why it was stopped after its start; empty if unknown.
    """
    if log := _termination_log(output):
        details = log.get("details") if isinstance(log.get("details"), dict) else None
        message = one_line(str(log.get("message", "")))[:MAX_MESSAGE_CHARS]
        return Failure(str(log["reason"]), message, at, exit_code, details or {})
    if deadline_s is not None:
        sentence = f"The pod was not ready within {deadline_s:g} s (spec.rollout.startupDeadline)."
        return Failure("StartupTimedOut", sentence, at, exit_code)
    last = f" Last output: {one_line(output.splitlines()[-1][:MAX_LINE_CHARS])}" if output else ""
    if why:
        return Failure("Killed", f"The process was stopped: {why}.{last}", at, exit_code)
    if exit_code in SIGNALS:
        return Failure("Killed", f"The process was killed by {SIGNALS[exit_code]}.{last}", at, exit_code)
    return Failure("Crashed", f"The process ended with exit code {exit_code}.{last}", at, exit_code)


def _termination_log(text: str) -> dict[str, Any] | None:
    """Parse the termination log of a runtime; None for any other text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    reason = document.get("reason") if isinstance(document, dict) else None
    return document if isinstance(reason, str) and _REASON.fullmatch(reason) else None


def one_line(text: str) -> str:
    """Replace what would break or repaint a line of a log: a pod's text must not look like another's."""
    return "".join(character if character.isprintable() else " " for character in text)
