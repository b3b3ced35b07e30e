"""Runtimes that `llama_server.py` asks for, one for each set of flags; the longest unused ends first.

Each serves SmolLM2-135M-Instruct from a folder of links, whose template, sampling and pooling follow the
flags.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import OrderedDict
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from flags import RuntimeSettings

MAX_RUNNING = 11
START_S = 300.0
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False, "include_prompt": True}
MODULES = (
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
)


class Runtimes(ThreadingHTTPServer):
    """An HTTP server on loopback: takes the JSON of a `RuntimeSettings`, answers with its `address`.

    Args:
        programs: folder of `wisp-runtime` and `wisp-gateway`.
        template_root: folder that names of template files start from.
    """

    daemon_threads = True

    def __init__(self, programs: Path, template_root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._programs, self._template_root = programs, template_root
        self._running: OrderedDict[RuntimeSettings, tuple[str, ExitStack]] = OrderedDict()
        self._lock = threading.Lock()
        command = [programs / "wisp-runtime", "example"]
        self._model = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def address(self, settings: RuntimeSettings) -> str:
        """Return `host:port` of the runtime, once it is ready."""
        with self._lock:
            if settings not in self._running:
                while len(self._running) >= MAX_RUNNING:
                    self._running.popitem(last=False)[1][1].close()
                self._running[settings] = self._start(settings)
            self._running.move_to_end(settings)
            return self._running[settings][0]

    def close(self) -> None:
        """End all of them."""
        self.shutdown()
        with self._lock:
            for _, ending in self._running.values():
                ending.close()

    def _start(self, settings: RuntimeSettings) -> tuple[str, ExitStack]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = self._model_folder(folder / "model", settings)
            port = _free_port()
            limits = [
                "--max-context",
                settings.context,
                "--max-concurrent",
                settings.max_concurrent,
                "--threads",
                2,
            ]
            aliases = [flag for name in settings.names[1:] for flag in ("--alias", name)]
            serve = [
                "serve",
                model,
                "--served-name",
                settings.names[0],
                "--host",
                "127.0.0.1",
                "--port",
                port,
            ]
            process = self._process("wisp-runtime", *serve, *limits, *aliases, "--drain-timeout-s", 0)
            stack.callback(_end, process)
            _wait(f"http://127.0.0.1:{port}/readyz", process)
            if settings.api_key or settings.allowed_origin:
                port = self._start_gateway(stack, folder, settings, port)
            return f"127.0.0.1:{port}", stack.pop_all()

    def _start_gateway(self, stack: ExitStack, folder: Path, settings: RuntimeSettings, runtime: int) -> int:
        endpoint = {"id": "runtime", "address": f"127.0.0.1:{runtime}", "ready": True}
        name = settings.names[0]
        model = {"namespace": "default", "name": name, "servedName": name, "names": [name], "state": "Ready"}
        (folder / "directory.json").write_text(json.dumps({"models": [{**model, "endpoints": [endpoint]}]}))
        flags: list[object] = ["--directory", folder / "directory.json", "--port", (port := _free_port())]
        if settings.api_key:
            (folder / "keys").write_text(f"tests:{settings.api_key}\n")
            flags += ["--api-keys", folder / "keys"]
        if settings.allowed_origin:
            flags += ["--allow-origin", settings.allowed_origin]
        process = self._process("wisp-gateway", *flags, "--drain-timeout-s", 0)
        stack.callback(_end, process)
        _wait(f"http://127.0.0.1:{port}/readyz", process)
        return port

    def _process(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self._programs / program, *map(str, arguments)], stderr=subprocess.DEVNULL)

    def _model_folder(self, folder: Path, settings: RuntimeSettings) -> Path:
        folder.mkdir()
        for file in self._model.iterdir():
            if file.is_file() and file.name != "wisp-example.json":
                (folder / file.name).symlink_to(file)
        self._replace(
            folder / "generation_config.json", {"temperature": settings.temperature, "do_sample": True}
        )
        if settings.template:
            template = (self._template_root / settings.template).read_text()
            self._replace(folder / "tokenizer_config.json", {"chat_template": template})
        if settings.pooling == "mean":
            (folder / "1_Pooling").mkdir()
            size = json.loads((folder / "config.json").read_text())["hidden_size"]
            pooling = {"word_embedding_dimension": size, **MEAN}
            (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
            (folder / "modules.json").write_text(json.dumps(MODULES))
        return folder

    def _replace(self, file: Path, fields: dict[str, object]) -> None:
        values = json.loads(file.read_text()) if file.exists() else {}
        file.unlink(missing_ok=True)
        file.write_text(json.dumps({**values, **fields}))


class _Handler(BaseHTTPRequestHandler):
    server: Runtimes

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            status, answer = 200, {"address": self.server.address(RuntimeSettings.from_json(text))}
        except (OSError, TimeoutError, ValueError) as error:
            status, answer = 500, {"error": str(error)}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise OSError(f"{process.args!r} ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
