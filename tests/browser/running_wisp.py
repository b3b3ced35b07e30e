"""A ``wisp up`` and its gateway as processes, with SmolLM2 and scripted models, for a browser to look at."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = os.environ.get("SERVER_PYTHON", str(HERE.parents[1] / ".venv/bin/python"))
TIMEOUT_S = 120.0
IDLE = "30m"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "<tools>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>"
    '<tool_call>{"name": …}</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think> </think> #}"
)
MAX_CONTEXT = 32768


def program(name: str) -> str:
    """Return the path of one of our programs."""
    return str(Path(PYTHON).with_name(name))


def until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)
    return value


class Script:
    """The folder that directs a scripted model; see scripted_runtime.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._answers: list[dict[str, Any]] = []
        self.write()

    def answer(self, prompt: str, *parts: str | dict[str, str], **settings: float) -> None:
        """Have the model answer ``parts`` to messages that contain ``prompt``."""
        self._answers.insert(0, {"prompt": prompt, "parts": parts, **settings})
        self.write()

    def write(self) -> None:
        new = self.folder / "answers.new"
        new.write_text(json.dumps(self._answers))
        new.rename(self.folder / "answers.json")

    def wait(self) -> tuple[dict[str, str], Callable[[], None]]:
        """Return a part of an answer that waits, and the function that lets it go on."""
        name = f"go-{uuid.uuid4().hex}"
        return {"wait": name}, (self.folder / name).touch

    def fail(self, reason: str, message: str) -> None:
        """Have every start-up end with an error."""
        (self.folder / "fail.json").write_text(json.dumps({"reason": reason, "message": message}))

    def mend(self) -> None:
        """Have start-ups succeed again."""
        (self.folder / "fail.json").unlink()

    @contextlib.contextmanager
    def held_wake(self) -> Iterator[None]:
        """Keep wakes at 62 % of the weights for the block."""
        (self.folder / "hold").touch()
        try:
            yield
        finally:
            (self.folder / "hold").unlink(missing_ok=True)


def example_model() -> Path:
    """Return the folder of SmolLM2, made if it is not there."""
    made = subprocess.run([program("wisp-runtime"), "example"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.strip())


def scripted_model(folder: Path, example: Path) -> Path:
    """Make a checkpoint for the scripted runtime: SmolLM2's, a longer context, tools and thinking."""
    folder.mkdir()
    for name in ("tokenizer.json", "model.safetensors", "generation_config.json"):
        (folder / name).symlink_to(example / name)
    config = json.loads((example / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": MAX_CONTEXT}))
    tokens = json.loads((example / "tokenizer_config.json").read_text())
    changed = tokens | {"chat_template": TEMPLATE, "model_max_length": MAX_CONTEXT}
    (folder / "tokenizer_config.json").write_text(json.dumps(changed))
    return folder


def manifest(name: str, model: Path, script: Script | None = None, **spec: Any) -> dict[str, Any]:
    """Return an InferenceModel on the CPU, scripted if it has a script."""
    env = [{"name": "SCRIPT", "value": script.folder.name}] if script else []
    body = {
        "model": {"uri": f"file://{model}"},
        "gpu": {"count": 0},
        "scaling": {"min": 0, "idleAfter": IDLE},
        "runtime": {"env": env},
        **spec,
    }
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel", "metadata": metadata, "spec": body}


class Wisp:
    """A running ``wisp up``.

    Args:
        folder: empty folder for its files.
        models: manifests.
        scripts: folder of the scripts that the manifests name.
    """

    def __init__(self, folder: Path, models: list[dict[str, Any]], scripts: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self._mark = f"WISPPAGE{uuid.uuid4().hex}"
        (folder / "models.yaml").write_text("\n---\n".join(map(json.dumps, models)))
        command = [program("wisp"), "up", str(folder / "models.yaml"), "--port", "0", "--device", "cpu"]
        with (folder / "up.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--state-dir", str(self.state_dir)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ
                | {"MARK": self._mark, "WISP_RUNTIME_PROGRAM": str(_runtime_program(folder, scripts))},
            )
        self.url = self.process.stdout.readline().strip().removesuffix("/v1")
        assert self.url, self.log()

    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def model(self, name: str) -> dict[str, Any]:
        """Return a model's part of ``/state``."""
        with urllib.request.urlopen(f"{self.url}/state", timeout=TIMEOUT_S) as answer:
            return next(model for model in json.load(answer)["models"] if model["name"] == name)

    def wake(self, name: str) -> None:
        """Wake a model and wait until it has answered."""
        body = json.dumps({"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", body.encode(), headers)
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()

    def pid_of_gateway(self) -> int:
        """Return the process id of the gateway that ``wisp up`` runs."""
        return next(pid for pid, command in self._processes() if "wisp-gateway" in command)

    def restart_gateway(self, meanwhile: Callable[[], None]) -> None:
        """Kill the gateway, call ``meanwhile`` while there is none, and wait until there is another."""
        old = self.pid_of_gateway()
        self.process.send_signal(signal.SIGSTOP)
        try:
            os.kill(old, signal.SIGKILL)
            meanwhile()
        finally:
            self.process.send_signal(signal.SIGCONT)
        until(self._answers, f"the gateway answers again; {self.log()}")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def _processes(self) -> Iterator[tuple[int, str]]:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (entry / "environ").read_bytes():
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.stdout.close()


def _runtime_program(folder: Path, scripts: Path) -> Path:
    """Write the program that pods run: the scripted runtime where the manifest names a script."""
    path = folder / "runtime"
    scripted = f'SCRIPT="{scripts}/$SCRIPT" exec "{PYTHON}" "{HERE / "scripted_runtime.py"}" "$@"'
    path.write_text(f'#!/bin/sh\n[ -z "$SCRIPT" ] || {scripted}\nexec "{program("wisp-runtime")}" "$@"\n')
    path.chmod(0o755)
    return path


def own_address() -> str:
    """Return an address of this machine at which documents need a key too, unlike at the loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the route
        return unsent.getsockname()[0]
    return "127.0.0.1"


def directory_with_key(wisp: Wisp, name: str, keys: Path) -> Path:
    """Write the directory of ``wisp`` as it is now, where the model ``name`` alone needs a key."""
    directory = json.loads((wisp.state_dir / "directory.json").read_text())
    next(model for model in directory["models"] if model["name"] == name)["apiKeysFile"] = str(keys)
    path = keys.with_name("directory.json")
    path.write_text(json.dumps(directory))
    return path


class Gateway:
    """A second gateway over the models of a ``wisp up``."""

    def __init__(self, wisp: Wisp, folder: Path, *arguments: str | Path) -> None:
        files = ["--pod-token-keys", str(wisp.state_dir / "token-keys")]
        log = folder / "gateway.log"
        with log.open("wb") as output:
            command = [program("wisp-gateway"), *files, "--port", "0", *map(str, arguments)]
            self.process = subprocess.Popen(command, stderr=output)
        self.url = until(lambda: re.findall(r"listening on (\S+)", log.read_text()), "the gateway listens")[0]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
