"""Start ``wisp-runtime serve`` as a process of its own and time it to its first streamed token."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from wisp_runtime.errors import EngineDied
from wisp_runtime.measure import nvml
from wisp_runtime.measure.peers import with_peer
from wisp_runtime.measure.record import Row

_HOST = "127.0.0.1"
_POLL_S = 0.002
_END_WITHIN_S = 20.0
_PROMPT = [17, 42, 7]
_MAIN = "from wisp_runtime.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        ready_s: from the process's start until ``/readyz`` said so.
        first_token_s: until the first streamed token of a request that was sent at that moment.
        state: what ``/state`` said after that.
        gpu_bytes: of the server and its engine, as NVML counts them; None where it does not.
    """

    ready_s: float
    first_token_s: float
    state: dict[str, Any]
    gpu_bytes: int | None


def start_rows(
    folder: Path, shape: str, *, device: str, repeats: int, flags: Sequence[str], within_s: float = 300.0
) -> Iterator[Row]:
    """Start a server ``repeats`` times after a first that is not counted, and sum up.

    Args:
        folder: the model's; its files are in the page cache after the first start.
        shape: the model's name in the rows.
        device: ``cuda`` or ``cpu``.
        repeats: starts.
        flags: more flags of ``serve``.
        within_s: a start that takes longer has failed.

    Raises:
        EngineDied: the server ended, or gave no token in time.
    """
    starts = [start_once(folder, device=device, flags=flags, within_s=within_s) for _ in range(repeats + 1)]
    first, *counted = starts
    path = "general" if device == "cuda" else "reference"
    held = "bf16" if device == "cuda" else "float32"

    def row(metric: str, value: float, **more: object) -> Row:
        return Row(metric, value, path, shape, held, held, more=more)

    card = nvml.card() if device == "cuda" else None
    total = row(
        "start_to_first_token_s",
        statistics.median(one.first_token_s for one in counted),
        ready_s=statistics.median(one.ready_s for one in counted),
        runs_s=[round(one.first_token_s, 3) for one in counted],
        uncounted_s=round(first.first_token_s, 3),
    )
    yield with_peer(total, card.name if card else None)
    for phase in first.state["phases"]:
        found = [one for start in counted for one in start.state["phases"] if one["name"] == phase["name"]]
        seconds = statistics.median(one["seconds"] for one in found)
        yield row("start_phase_s", seconds, phase=phase["name"], bytes=found[-1]["bytes"])
    yield from _memory_rows(counted[-1], row)


def _memory_rows(start: Start, row: Any) -> Iterator[Row]:
    if start.gpu_bytes is None:
        return
    predicted = start.state["ledger"]["totalBytes"]
    off_percent = 100 * (start.gpu_bytes - predicted) / predicted
    yield row("memory_predicted_bytes", predicted, source="served")
    yield row("memory_measured_bytes", start.gpu_bytes, source="served", off_percent=off_percent)


def start_once(folder: Path, *, device: str, flags: Sequence[str], within_s: float) -> Start:
    """Start a server, ask it for a token as soon as it is ready, look at its state, and end it.

    Raises:
        EngineDied: it ended, or gave no token in time.
    """
    port = _free_port()
    command = [
        sys.executable,
        "-c",
        _MAIN,
        "serve",
        str(folder),
        "--served-name",
        "measured",
        "--host",
        _HOST,
    ]
    command += ["--port", str(port), "--device", device, *flags]
    with tempfile.TemporaryFile() as log:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with _named_failure(log, within_s):
                _wait_until_ready(process, port, began_s + within_s)
                ready_s = time.monotonic() - began_s
                _first_token(port, within_s)
                first_token_s = time.monotonic() - began_s
                return Start(ready_s, first_token_s, _state(port), _gpu_bytes(process.pid))
        finally:
            _end(process)


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _named_failure(log: Any, within_s: float) -> Iterator[None]:
    try:
        yield
    except (OSError, HTTPException) as error:
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()[-8:]
        raise EngineDied(
            f"the measured server gave no token within {within_s:g} s ({error or type(error).__name__}). "
            f"It said: {' | '.join(said)}"
        ) from error


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, deadline_s: float) -> None:
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise OSError(f"it ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            connection = HTTPConnection(_HOST, port, timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
        time.sleep(_POLL_S)
    raise TimeoutError("it was not ready")


def _first_token(port: int, within_s: float) -> None:
    """Ask for a few tokens and return when the first has come."""
    body = {"model": "measured", "prompt": _PROMPT, "max_tokens": 8, "stream": True, "ignore_eos": True}
    connection = HTTPConnection(_HOST, port, timeout=within_s)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            if response.status != 200:
                raise HTTPException(f"{response.status}: {line.decode(errors='replace')[:300]}")
            if line.startswith(b"data:"):
                return
    raise HTTPException("the stream ended without a token")


def _state(port: int) -> dict[str, Any]:
    connection = HTTPConnection(_HOST, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/state")
        state: dict[str, Any] = json.load(connection.getresponse())
        return state


def _gpu_bytes(pid: int) -> int | None:
    """Return what a process and its children hold of the GPU."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [nvml.process_bytes(one) for one in (pid, *map(int, children))]
    counted = [size for size in found if size is not None]
    return sum(counted) if counted else None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
