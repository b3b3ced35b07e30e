"""kubectl as Python functions, manifests of the tests, and the operator as a process."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import api
import yaml

from wisp_operator.local.machine.ports import free_port

# Flags that open what the tests' models ask for and an installation closes by itself.
ALLOWED = ("--allow-file-below", "/", "--allow-env", "FAKE_*,TOKEN", "--allow-env-secrets")
FAKE_IMAGE = "wisp.test/fake-runtime:1"
# Exists if the cluster is tests/cluster/node.
NODE_RUN = Path("/run", os.environ.get("WISP_NODE", "wisp-node"))


def kubectl(*arguments, stdin=None, check=True):
    """Run kubectl; its standard output, or with check=False its whole result."""
    done = subprocess.run(["kubectl", *arguments], input=stdin, text=True, capture_output=True, timeout=60)
    if check and done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout if check else done


def get(kind, name="", namespace="default"):
    """An object, or the items of a kind, as plain data."""
    if path := api.path_of(kind, name, namespace):
        found = api.read(path)
    else:
        found = json.loads(kubectl("get", kind, *([name] if name else []), "-n", namespace, "-o", "json"))
    return found if name else found["items"]


def model(name, **spec):
    """An InferenceModel's manifest on the CPU, with parts of its spec replaced."""
    base = {"model": {"uri": "file:///srv"}, "gpu": {"count": 0}}
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def fake(**variables):
    """spec.runtime with the variables of the fake runtime."""
    return {
        "env": [{"name": f"FAKE_{name.upper()}", "value": str(value)} for name, value in variables.items()]
    }


def apply(*manifests, namespace="default", check=True):
    return kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(manifests), check=check)


def until(claim, seconds=90.0, every=0.2):
    """Call ``claim`` until it returns something true, and return that.

    By default for as long as a kubelet needs that read an object in vain: its tries are up to 30 s apart.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = claim()
        if found or time.monotonic() > deadline:
            assert found, f"not within {seconds:g} s: {claim.__name__}: {found!r}"
            return found
        time.sleep(every)


def status(name, namespace="default"):
    return get("inferencemodel", name, namespace).get("status", {})


def condition(name, kind, namespace="default"):
    """Status and reason of a condition."""
    found = status(name, namespace).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))


def message(name, kind, namespace="default"):
    found = status(name, namespace).get("conditions", [])
    return next((c["message"] for c in found if c["type"] == kind), "")


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
