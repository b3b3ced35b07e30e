"""Start this process again without the persistent decode kernel, after a step of it hung.

A hung step ends in a trap, and nothing on that GPU context works after it. What made it hang, something that
holds a part of the GPU, is probably still there: the same start would hang again. The process id stays, so
neither a kubelet nor ``wisp up`` counts it as a crash; ``/state`` names the hang in ``kernels.why``.
"""

from __future__ import annotations

import os
import sys

from wisp_runtime.config import ServeConfig, environment_after
from wisp_runtime.engine.transport.messages import Fatal
from wisp_runtime.server.startup_log import say

HANG_DETAIL = "hang"
"""Detail of a :class:`.KernelFault` that names the wait which timed out."""


def can_restart(failure: Fatal, config: ServeConfig) -> bool:
    """Return whether ``failure`` is a hang of a kernel that this server can do without."""
    return HANG_DETAIL in failure.details and config.decode_path == "auto" and not config.deterministic


def restart_on_general_path(failure: Fatal) -> None:
    """Replace this process by the same command, with decode steps on the general path; does not return.

    The engine's process has to be gone, and the listening socket closed.
    """
    say(f"{failure.reason}: {failure.message}")
    say("starting again, with decode steps on the general path")
    environment = environment_after(str(failure.details[HANG_DETAIL]))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
