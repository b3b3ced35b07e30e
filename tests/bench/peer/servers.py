"""Servers of a comparison: vLLM's and Wisp's, each a process with a log, ready or ended within a limit."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
HOST, MODEL = "127.0.0.1", "measured"
CONTEXT = 8192
_FREE_BYTES = 3 << 30  # used by a GPU without processes of ours
OFFLINE = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUBOFFLINE": "1",
    "TRANSFORMERSOFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it would compile one with packages that are not there
    "VLLM_HOST_IP": HOST,
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class Command:
    """How a server is started.

    Attributes:
        name: name in the records.
        words: command line.
        environment: variables besides this process's.
        ready_path: path that answers 200 once the server is ready.
        port: port that it listens on.
    """

    name: str
    words: list[str]
    environment: dict[str, str]
    ready_path: str
    port: int


def vllm(
    folder: Path,
    work: Path,
    port: int,
    *,
    name: str,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Command:
    """Return vLLM's server: its defaults, but for ``flags`` and ``environment``."""
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    words += ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--served-model-name", MODEL]
    words += ["--host", HOST, "--port", str(port), "--disable-uvicorn-access-log", *flags]
    caches = {
        "VLLM_CACHE_ROOT": str(work / "cache/vllm"),
        "TRITON_CACHE_DIR": str(work / "cache/triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "cache/inductor"),
        "PYTHONPATH": str(work / "site"),
    }
    return Command(name, words, OFFLINE | caches | dict(environment or {}), "/health", port)


def wisp(folder: Path, device: str, port: int, kernels: Path, quantization: str = "auto") -> Command:
    """Return Wisp's server; of a format, it quantizes the folder's bf16 weights while it loads them."""
    words = [sys.executable, "-c", "from wisp_runtime.cli.main import main; main()", "serve", str(folder)]
    words += ["--served-name", MODEL, "--host", HOST, "--port", str(port), "--device", device]
    words += ["--quantization", quantization]
    if device == "cuda":
        words += ["--max-concurrent", "256", "--max-context", str(CONTEXT)]
    return Command("wisp", words, {"WISP_KERNELS": str(kernels)}, "/readyz", port)


def stand_in(port: int, *, name: str) -> Command:
    """Return a server without a model, for dry runs."""
    words = [sys.executable, str(ROOT / "tests/runtime/support/openai_server.py"), "--model", MODEL]
    return Command(name, [*words, "--port", str(port)], {}, "/v1/models", port)


class Server:
    """A started server."""

    def __init__(self, command: Command, logs: Path, name: str = "") -> None:
        self.command = command
        self.log = logs / f"{(name or command.name).replace(' ', '-')}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command.words,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | command.environment,
                cwd=logs,  # the repository's folders would look like packages there: kernels, tests
                start_new_session=True,
            )
        self.began_s = time.monotonic()

    def wait_ready(self, limit_s: float) -> bool:
        """Return whether the server was ready within ``limit_s``; print its log's end if not."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if self.is_ready():
                return True
            time.sleep(0.1)
        print(f"--- {self.command.name} is not ready (status {self.process.poll()}); its log ends:")
        print("\n".join(self.log.read_text(errors="replace").splitlines()[-40:])[-4000:], flush=True)
        return False

    def is_ready(self) -> bool:
        """Return whether the server answers."""
        return self.answers(self.command.ready_path) is not None

    def answers(self, path: str) -> bytes | None:
        """Return the body of a GET with status 200; None if there is none."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(HOST, self.command.port, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", path)
                response = connection.getresponse()
                return response.read() if response.status == 200 else None
        return None

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    def state(self) -> dict[str, Any]:
        """Return Wisp's ``/state``."""
        return json.loads(self.answers("/state") or b"{}")

    def stop(self) -> None:
        """End the server and all its processes."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(4)
                break
        self.kill()  # vLLM's engine outlives its server

    def kill(self) -> None:
        """End all processes of the server at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def started(command: Command, logs: Path, name: str = "") -> Iterator[Server]:
    """Start a server and stop it at the end, whatever happens; then the GPU has its memory back."""
    server = Server(command, logs, name)
    try:
        yield server
    finally:
        server.stop()
        wait_for_gpu(10.0)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack with tar where it knows xz, else with Python."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("xz") and not subprocess.run(["tar", "-C", folder, "-xJf", archive]).returncode:
        return
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def wait_for_gpu(limit_s: float) -> None:
    """Wait until no ended process holds the GPU's memory."""
    from wisp_runtime.bench import nvml

    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and (nvml.used_bytes() or 0) > _FREE_BYTES:
        time.sleep(0.1)
