"""The engine's process: ``python -m wisp_runtime.engine.process FD PARENT STARTED``.

FD is its end of the pipe, PARENT the server's process id, STARTED the monotonic time at which the server
started it. The first message is the :class:`wisp_runtime.config.ServeConfig`. Every failure is sent as
:class:`.messages.Fatal` before the process ends. It never outlives the server, and it leaves signals to the
server, which decides when to drain and when to stop.
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

from wisp_http.log_lines import set_up_log
from wisp_runtime.engine.transport.messages import Fatal, Phase
from wisp_runtime.engine.transport.pipe import Pipe, ServerGone
from wisp_runtime.errors import DeviceFailed, EngineFailed, RuntimeFailure

if TYPE_CHECKING:
    from wisp_runtime.config import ServeConfig
    from wisp_runtime.engine.startup import Engine

Report = Callable[[Phase], None]
Start = Callable[["ServeConfig", Report], "Engine"]
_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


def main(arguments: list[str], start: Start | None = None) -> int:
    """Run the engine; return the exit status.

    Args:
        arguments: FD, PARENT, STARTED.
        start: start-up of the model; :func:`.startup.start` unless a test brings its own.
    """
    descriptor, parent, started_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(parent)
    pipe = Pipe(socket.socket(fileno=descriptor))
    try:
        serve(pipe, started_s, start)
    except ServerGone:
        pass
    except RuntimeFailure as failure:
        return report_end(pipe, failure)
    except Exception as error:
        log.exception("the engine failed")
        return report_end(pipe, _unexpected(error))
    return 0


def serve(pipe: Pipe, started_s: float, start: Start | None) -> None:
    """Start up, then run until the server asks to stop."""
    config, *early = pipe.receive(waits=True)
    set_up_log(config.log_level, config.log_format)
    pipe.send(Phase("import"))
    from wisp_runtime.engine import loop, startup  # NumPy and the model code: the phase "import"

    pipe.send(Phase("import", time.monotonic() - started_s, is_done=True))
    engine = (start or startup.start)(config, pipe.send)
    pipe.send(engine.ready)
    runner = engine.runner
    if engine.co_running_check is not None:
        engine.co_running_check.on_change = lambda is_suspended: pipe.send(engine.ready_while(is_suspended))
    if runner.overlaps:  # its calls may wait for a device
        from wisp_runtime.engine.watchdog import Watchdog, WatchedRunner

        runner = WatchedRunner(runner, Watchdog(lambda timeout_s: end_unresponsive(pipe, timeout_s)))
    loop.run(pipe, engine.scheduler, runner, early, engine.compiler, engine.experts)


def end_unresponsive(pipe: Pipe, timeout_s: float) -> None:
    """Report that the device does not respond, and end the process; called on a thread of its own."""
    failure = DeviceFailed(
        f"the GPU has not finished a step for {timeout_s:g} s; it hangs. The process ends, and others serve. "
        "If it happens again, look at dmesg for Xid messages, and drain the node."
    )
    os._exit(report_end(pipe, failure))


def report_end(pipe: Pipe, failure: RuntimeFailure) -> int:
    """Send the server the reason why the engine ends; return the exit status."""
    with contextlib.suppress(ServerGone):
        pipe.send(
            Fatal(failure.reason, failure.message, failure.exit_code, dict[str, object](failure.details))
        )
    return failure.exit_code


def end_with_parent(parent: int) -> None:
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
