"""Detect an engine that neither answers nor ends.

On a GPU the engine's own watchdog ends it sooner, with more to say. This one sees what that cannot: a loop
or deadlock of the engine itself, a process that was stopped, a step on the CPU that never ends. ``/livez``
reports the server, which would look alive beside such an engine for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from wisp_runtime.engine.transport.client import Engine
from wisp_runtime.errors import EngineFailed

TIMEOUT_S = 600.0  # the slowest step there is: a prefill chunk of a large model on the CPU
CHECKS = 50  # within a timeout


async def wait_for_silence(
    engine: Engine, has_running: Callable[[], bool], timeout_s: float = TIMEOUT_S
) -> EngineFailed:
    """Wait until ``engine`` has sent nothing for ``timeout_s`` while sequences ran; return the failure.

    Args:
        engine: engine, which sends its load with each step.
        has_running: reader of whether any sequence waits for tokens.
    """
    last, since_s = engine.load, time.monotonic()
    while time.monotonic() - since_s < timeout_s:
        await asyncio.sleep(timeout_s / CHECKS)
        if engine.load is not last or not has_running():
            last, since_s = engine.load, time.monotonic()
    return EngineFailed(
        f"the engine has answered nothing for {timeout_s:g} s while requests ran. The process ends, "
        "to be replaced. If it happens again, report it with a stack of the engine (py-spy)."
    )
