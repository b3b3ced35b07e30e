"""Life cycle of a runtime process: listen, load, serve, drain, exit with a reason.

The port is bound before anything is read, and the engine's process is started before this one imports
its web framework, so that both load in parallel. Health endpoints respond while the model loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import uvloop

from wisp_http.log_lines import set_up_log
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.client import Engine, EngineClient
from wisp_runtime.engine.transport.messages import Fatal
from wisp_runtime.errors import ListenFailed, PortInUse, RuntimeFailure, ServerFailed
from wisp_runtime.server.restart import can_restart, restart_on_general_path
from wisp_runtime.server.startup_log import failure_of, follow_phases, report_failure, say

BACKLOG = 2048
MAX_INTEGER_DIGITS = 640  # Python's lowest limit; the time to read one grows with the square

log = logging.getLogger(__name__)

StartEngine = Callable[[ServeConfig], Awaitable[Engine]]


def run(config: ServeConfig, start_engine: StartEngine = EngineClient.start) -> int:
    """Serve until asked to stop or until something breaks; return the process's exit code."""
    sys.set_int_max_str_digits(MAX_INTEGER_DIGITS)
    set_up_log(config.log_level, config.log_format)
    try:
        with (
            bound_socket(config.host, config.port) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            failure = runner.run(serve(config, listener, start_engine))
    except RuntimeFailure as error:
        failure = failure_of(error)
    except Exception as error:
        log.exception("the server failed")
        failure = failure_of(
            ServerFailed(f"{type(error).__name__}: {error}. A bug; see the log's traceback.")
        )
    if failure is None:
        return 0
    if can_restart(failure, config):
        restart_on_general_path(failure)
    report_failure(failure, config.termination_log)
    return failure.exit_code


@contextlib.contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on ``host:port``; early clients wait in the socket's backlog.

    Raises:
        PortInUse: another process listens there.
        RuntimeFailure: the address is not one of this machine's, or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)  # the second of two that bind before either listens fails here
        except OSError as error:
            raise _cannot_listen(error, host, port) from error
        listener.setblocking(False)
        yield listener


def _cannot_listen(error: OSError, host: str, port: int) -> RuntimeFailure:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"port {port} on {host} is in use by another process. Stop it, or choose another with --port.",
            host=host, port=port,
        )  # fmt: skip
    return ListenFailed(
        f"cannot listen on {host}:{port}: {error.strerror or error}. Check --host and --port.",
        host=host,
        port=port,
    )


async def serve(config: ServeConfig, listener: socket.socket, start_engine: StartEngine) -> Fatal | None:
    """Run one server on ``listener`` to its end; return the failure, or None after a stop signal."""
    stop, began_s = StopSignals(), time.monotonic()
    engine = await start_engine(config)
    try:
        from wisp_runtime.server.http.server import HttpServer  # Uvicorn: while the engine's process starts

        server = HttpServer(config, engine, listener)
        say(f"listening on http://{_address(listener)}")
        if access := access_line(config, listener.getsockname()[0]):
            say(access)
        phases = asyncio.create_task(follow_phases(engine, lambda: server.service.status == "ready", began_s))
        try:
            return await server.run(stop.asked, stop.skip_wait)
        finally:
            phases.cancel()
    finally:
        await engine.shutdown()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def access_line(config: ServeConfig, address: str) -> str:
    """Return who may use a server, and the settings that change it.

    Empty for a pod of the operator, whose gateway alone knows its token, and for this machine without a key.

    Args:
        address: address that it listens on.
    """
    if config.api_key:
        keys = "the key" if len(config.api_key) == 1 else f"one of {len(config.api_key)} keys"
        return f"requests need {keys} of --api-key or WISP_API_KEY"
    if config.pod_token_sha256 or ipaddress.ip_address(address).is_loopback:
        return ""
    return (
        f"--host {config.host}: everybody who reaches this machine may use the model, without a key. "
        "--host 127.0.0.1 lets in this machine alone, --api-key KEY (WISP_API_KEY) callers with the key."
    )


class StopSignals:
    """SIGTERM and SIGINT drain the process; a second SIGINT skips the wait.

    Attributes:
        asked: event, set by the first signal.
        skip_wait: event, set by an interrupt after the first signal.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.skip_wait = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.asked.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        if self.asked.is_set():
            self.skip_wait.set()
        else:
            say("stopping once running requests have ended; Ctrl-C again ends them at once")
        self.asked.set()
