"""The operator as a process beside the cluster, which runs the fake runtime."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from kube import FAKE_IMAGE, until

from wisp_operator.local.machine.ports import free_port

# Flags that open what the tests' models ask for and an installation closes by itself.
ALLOWED = ("--allow-file-below", "/", "--allow-env", "FAKE_*,TOKEN", "--allow-env-secrets")


class OperatorProcess:
    """One replica of the operator as a process of this machine."""

    def __init__(self, log, namespace, identity, *flags):
        self.port = free_port()
        self.log, self.identity = log, identity
        command = [sys.executable, "-m", "wisp_operator.main", "--namespace", namespace]
        command += ["--identity", identity, "--port", str(self.port), "--advertise", f"127.0.0.1:{self.port}"]
        command += ["--runtime-image", FAKE_IMAGE, "--runtime-memory", "16Mi", "--runtime-cpu", "1m"]
        command += ["--endpoint-grace-s", "1", *ALLOWED, *flags]
        self.process = subprocess.Popen(command, stderr=log.open("ab"), stdout=subprocess.DEVNULL)

    def read(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return answer.read().decode()

    def metrics(self):
        """Every sample by its name and labels."""
        lines = [line for line in self.read("/metrics").splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def writes(self):
        """Requests so far that changed something."""
        verbs = ("apply", "status", "event", "delete", "annotate")
        return sum(n for name, n in self.metrics().items() if any(f'verb="{verb}"' in name for verb in verbs))

    def leads(self):
        try:
            return self.metrics()["wisp_operator_is_leader"] == 1
        except OSError:
            return False

    def ask(self, key, waiting=1, running=0, gateway="gateway-1"):
        """Say as a gateway would that requests wait; the HTTP status."""
        demand = {"waiting": waiting, "running": running, "arrivals": 1, "idleSeconds": 0.0}
        body = json.dumps({"gateway": gateway, "models": {key: demand}}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/demand", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as refusal:
            return refusal.code

    def rss_mib(self):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class KeptOperator:
    """One operator for many tests: a start of its own took each of them three seconds."""

    namespace = "kept-operator"

    def __init__(self):
        self._process, self._flags, self._started = None, (), 0

    def get(self, folder, *flags):
        """The operator, which leads; a new one, with its log in ``folder``, if none has these flags."""
        if self._process is None or self._process.process.poll() is not None or flags != self._flags:
            self.end()
            self._started += 1
            log, identity = folder / f"kept-{self._started}.log", f"kept-{self._started}"
            self._process, self._flags = OperatorProcess(log, self.namespace, identity, *flags), flags
        until(self._process.leads)
        return self._process

    def end(self):
        """Stop it, if it runs."""
        if self._process is not None and self._process.process.poll() is None:
            self._process.stop()
        self._process = None
