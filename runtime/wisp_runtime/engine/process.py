"""The engine's process: ``python -m wisp_runtime.engine.process FD PARENT STARTED``.

FD is its end of the pipe, PARENT the server's process id, STARTED the monotonic time at which the server
started it. The first message is the :class:`wisp_runtime.config.ServeConfig`. Whatever goes wrong is
told as :class:`.messages.Fatal` before the end. It never outlives the server, and it leaves signals
to it: the server decides when to drain and when to stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from wisp_runtime.engine.transport.messages import Fatal, Phase
from wisp_runtime.engine.transport.pipe import Pipe, ServerGone
from wisp_runtime.errors import DeviceFailed, EngineFailed, RuntimeFailure

if TYPE_CHECKING:
    from wisp_runtime.config import ServeConfig
    from wisp_runtime.engine.startup import Engine

Tell = Callable[[Phase], None]
Start = Callable[["ServeConfig", Tell], "Engine"]
_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


def main(arguments: list[str], start: Start | None = None) -> int:
    """Be the engine; return the exit status.

    Args:
        arguments: FD, PARENT, STARTED.
        start: brings the model up; :func:`.startup.start` unless a test brings its own.
    """
    descriptor, parent, started_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with(parent)
    pipe = Pipe(socket.socket(fileno=descriptor))
    try:
        serve(pipe, started_s, start)
    except ServerGone:
        pass
    except RuntimeFailure as failure:
        return tell_end(pipe, failure)
    except Exception as error:
        log.exception("the engine failed")
        return tell_end(pipe, _unexpected(error))
    return 0


def serve(pipe: Pipe, started_s: float, start: Start | None) -> None:
    """Start up, then run until told to stop."""
    config, *early = pipe.receive(waits=True)
    pipe.send(Phase("import"))
    from wisp_runtime.engine import loop, startup  # NumPy and the model code: the phase "import"

    pipe.send(Phase("import", time.monotonic() - started_s, is_done=True))
    engine = (start or startup.start)(config, pipe.send)
    pipe.send(engine.ready)
    runner = engine.runner
    if runner.overlaps:  # it waits for a device
        from wisp_runtime.engine.watchdog import Watchdog, Watched

        runner = Watched(runner, Watchdog(lambda limit_s: end_in_silence(pipe, limit_s)))
    loop.run(pipe, engine.scheduler, runner, early)


def end_in_silence(pipe: Pipe, limit_s: float) -> None:
    """Tell the server that the device does not answer, and end the process from a thread of its own."""
    failure = DeviceFailed(
        f"the GPU has not finished a step for {limit_s:g} s; it hangs. The process ends, and others serve. "
        "If it happens again, look at dmesg for Xid messages, and drain the node."
    )
    os._exit(tell_end(pipe, failure))


def tell_end(pipe: Pipe, failure: RuntimeFailure) -> int:
    """Tell the server why the engine ends; return the exit status."""
    with contextlib.suppress(ServerGone):
        pipe.send(
            Fatal(failure.reason, failure.message, failure.exit_code, dict[str, object](failure.details))
        )
    return failure.exit_code


def die_with(parent: int) -> None:
    """Have the kernel end this process when the server does, even in the middle of a step.

    The kernel watches the thread that started us: the server's event loop has to outlive the engine.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(0)


def _unexpected(error: Exception) -> EngineFailed:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return EngineFailed(
        f"a step or start-up raised {type(error).__name__}: {error} "
        f"({os.path.basename(where.filename)}:{where.lineno}). This is a bug; the log has its traceback."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
