"""``wisp-runtime serve`` as a separate process, from its start to its end."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from wisp_runtime.bench import nvml
from wisp_runtime.errors import EngineDied

HOST, NAME = "127.0.0.1", "measured"
_POLL_S = 0.002
_END_WITHIN_S = 20.0
_MAIN = "from wisp_runtime.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready.

    Attributes:
        port: port on :data:`HOST`; the model's name is :data:`NAME`.
        pid: id of the server's process.
        began_s: start of the process, on the monotonic clock.
        ready_s: seconds from then until ``/readyz`` returned 200.
    """

    port: int
    pid: int
    began_s: float
    ready_s: float

    def state(self) -> dict[str, Any]:
        """Return the body of ``/state``."""
        with contextlib.closing(HTTPConnection(HOST, self.port, timeout=10)) as connection:
            connection.request("GET", "/state")
            state: dict[str, Any] = json.load(connection.getresponse())
            return state

    def gpu_bytes(self) -> int | None:
        """Return NVML's bytes of the server and its engine; None where NVML does not report them."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        sizes = [nvml.process_bytes(pid) for pid in (self.pid, *map(int, children))]
        counted = [size for size in sizes if size is not None]
        return sum(counted) if counted else None


@contextlib.contextmanager
def serve(folder: Path, *, device: str, flags: Sequence[str], within_s: float) -> Iterator[Served]:
    """Start a server, yield it as soon as it is ready, and end it.

    Args:
        folder: folder of the model.
        device: ``cuda`` or ``cpu``.
        flags: further flags of ``serve``.
        within_s: timeout of the start.

    Raises:
        EngineDied: it ended, was not ready in time, or did not respond inside the block.
    """
    port = _free_port()
    command = [sys.executable, "-c", _MAIN, "serve", str(folder), "--served-name", NAME, "--host", HOST]
    command += ["--port", str(port), "--device", device, *flags]
    with tempfile.TemporaryFile() as log:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with _named_failure(log):
                _wait_until_ready(process, port, began_s + within_s)
                yield Served(port, process.pid, began_s, time.monotonic() - began_s)
        finally:
            _end(process)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _named_failure(log: Any) -> Iterator[None]:
    try:
        yield
    except (OSError, HTTPException) as error:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()[-8:]
        raise EngineDied(
            f"the measured server did not serve: {error or type(error).__name__}. Log: {' | '.join(lines)}"
        ) from error


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, deadline_s: float) -> None:
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise OSError(f"it ended with status {process.returncode}")
        with contextlib.suppress(OSError), contextlib.closing(HTTPConnection(HOST, port, timeout=10)) as one:
            one.request("GET", "/readyz")
            if one.getresponse().status == 200:
                return
        time.sleep(_POLL_S)
    raise TimeoutError("it was not ready in time")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
