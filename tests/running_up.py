"""A running ``wisp up`` for tests: the real command and gateway over fake runtimes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

FAKE = Path(__file__).parent / "operator/fake_runtime.py"
WISP = Path(sys.executable).with_name("wisp")
PATIENCE_S = 60


def manifest(name="tiny", namespace="default", *, uri="hf://fake/tiny", fake=None, **spec):
    """An InferenceModel on the CPU, asleep soon, whose runtime behaves as ``fake`` says."""
    env = [{"name": f"FAKE_{key.upper()}", "value": str(value)} for key, value in (fake or {}).items()]
    body = {
        "model": {"uri": uri},
        "gpu": {"count": 0},
        "scaling": {"idleAfter": "10m"},
        "runtime": {"env": env},
        **spec,
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel", "metadata": metadata, "spec": body}


class Up:
    """A running ``wisp up``; every process it starts carries :attr:`mark` in its environment."""

    def __init__(self, folder, documents, *arguments, runtime=FAKE):
        self.folder, self.mark = folder, f"WISPTEST{uuid.uuid4().hex}"
        self.file = folder / "models.yaml"
        self.write(documents)
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.environment = os.environ | {
            "MARK": self.mark,
            "TMPDIR": str(self.temporary),
            "WISP_RUNTIME_PROGRAM": str(runtime),
            "HF_ENDPOINT": "http://127.0.0.1:9",  # nobody listens there: the fit is not known
        }
        self.command = [str(WISP), "up", str(self.file), "--port", "0", *arguments]
        self.log = folder / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, env=self.environment, text=True
            )
        self.url = self.process.stdout.readline().strip().removesuffix("/v1")
        assert self.url, self.log.read_text()

    def write(self, documents):
        self.file.write_text("\n---\n".join(json.dumps(document) for document in documents))

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def state(self, key="default/tiny"):
        return next(m for m in self.get("/state")["models"] if f"{m['namespace']}/{m['name']}" == key)

    def ask(self, model="tiny", path="/v1", stream=False):
        """Status and body of one chat completion."""
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        request = urllib.request.Request(
            f"{self.url}{path}/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def until(self, condition, timeout_s=PATIENCE_S):
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found

    def is_in(self, state, key="default/tiny"):
        return lambda: self.state(key)["state"] == state

    def pid_of_pod(self, key="default/tiny"):
        address = next(e["address"] for e in self.state(key)["endpoints"] if not e["draining"])
        with urllib.request.urlopen(f"http://{address}/pid", timeout=PATIENCE_S) as answer:
            return json.load(answer)["pid"]

    def processes(self):
        """Command lines of everything alive that this run started."""
        alive = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    alive.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return alive

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def up(folder, *documents, arguments=(), runtime=FAKE):
    running = Up(folder, documents, *arguments, runtime=runtime)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGTERM)
        running.process.stdout.close()


def refusal(folder, text, *arguments):
    """Exit code and stderr of a ``wisp up`` that must not start."""
    file = folder / "model.yaml"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    done = subprocess.run(
        [str(WISP), "up", str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stderr
