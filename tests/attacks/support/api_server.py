"""A real API server with etcd and the garbage collector, and without a kubelet: processes of this machine.

Everything listens on the loopback, so tests need no namespace and no root. The binaries are those of
tests/cluster/node (``make cluster`` builds them once); without them :func:`missing_binary` names the first.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from wisp_operator.local.machine.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
TOKEN = "attacks"
CONTROLLERS = ("garbage-collector", "namespace", "deployment", "replicaset")
START_S = 90.0


def binary_folder():
    """Folder of tests/cluster/node/node.sh's binaries; its name holds their versions."""
    node = ROOT / "tests/cluster/node/node.sh"
    command = ["bash", "-c", f'. "{node}"; echo "$NODE_BIN"']
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def missing_binary():
    """The first binary that is not built yet, in a sentence; empty if all are there."""
    folder = binary_folder()
    absent = [name for name in BINARIES if not (folder / name).exists()]
    return f"{folder / absent[0]} is missing; `make cluster` builds it" if absent else ""


def until(claim, seconds=60.0, every=0.1):
    """Call ``claim`` until it returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (result := claim()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {claim.__name__}: {result!r}"
        time.sleep(every)
    return result


class ApiServer:
    """A running API server; :func:`api_server` starts and ends one.

    Attributes:
        url: base URL.
        kubeconfig: path of a kubeconfig with all rights.
    """

    def __init__(self, home):
        self.home, self._binaries, self._processes = home, binary_folder(), {}
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.kubeconfig = home / "kubeconfig"

    def start(self):
        """Start etcd, the server and the controllers; install the CRD."""
        self._write_credentials()
        client, peer = free_port(), free_port()
        urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        etcd = ["--data-dir", "etcd", "--unsafe-no-fsync", "--log-level", "error"]
        etcd += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        etcd += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
        self._spawn("etcd", *etcd, "--initial-cluster", f"default={urls[1]}")
        self._spawn("kube-apiserver", *self._server_flags(urls[0]))
        until(self._is_ready, START_S)
        credentials = [f"--{flag}={self.kubeconfig}" for flag in ("kubeconfig", "authentication-kubeconfig")]
        controllers = [*credentials, f"--authorization-kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        names = ",".join(f"{name}-controller" for name in CONTROLLERS)
        controllers += ["--controllers", names, "--secure-port", str(free_port())]
        controllers += ["--bind-address", "127.0.0.1"]
        self._spawn("kube-controller-manager", *controllers)
        crd = ROOT / "crds/inferencemodels.yaml"
        self.kubectl("apply", "--server-side", "-f", str(crd))
        until(lambda: self._is_established("inferencemodels.wisp.dev"))
        probe = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "probe"}}
        self.apply(probe)
        self.kubectl("delete", "namespace", "probe", "--timeout=60s")  # the controllers work

    def kubectl(self, *arguments, stdin=None, check=True):
        """Run kubectl; its standard output, or with check=False its complete result."""
        command = [str(self._binaries / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=90)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout if check else done

    def delete_namespace(self, name):
        """Delete a namespace, and wait for the end of its models: bare names are the whole cluster's."""
        self.kubectl("delete", "inferencemodels", "--all", "-n", name, "--timeout=30s", check=False)
        self.kubectl("delete", "namespace", name, "--wait=false", check=False)

    def apply(self, *manifests, namespace="default", check=True):
        """Apply manifests as plain data."""
        text = yaml.safe_dump_all(manifests)
        return self.kubectl("apply", "-n", namespace, "-f", "-", stdin=text, check=check)

    def get(self, kind, name="", namespace="default"):
        """An object (None if there is none), or the items of a kind, as plain data."""
        arguments = ("get", kind, *([name] if name else []), "-n", namespace, "-o", "json")
        done = self.kubectl(*arguments, "--ignore-not-found")
        if name:
            return json.loads(done) if done.strip() else None
        return json.loads(done)["items"] if done.strip() else []

    def status(self, name, namespace="default"):
        """``status`` of an InferenceModel; empty while there is none."""
        return (self.get("inferencemodel", name, namespace) or {}).get("status", {})

    def condition(self, name, kind, namespace="default"):
        """A condition of an InferenceModel; empty while there is none."""
        conditions = self.status(name, namespace).get("conditions", ())
        return next((entry for entry in conditions if entry["type"] == kind), {})

    def stop(self):
        """End every process and remove its files."""
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.home / "etcd", ignore_errors=True)

    def _spawn(self, name, *arguments):
        command = [str(self._binaries / name), *arguments]
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, cwd=self.home, stdout=log, stderr=log)

    def _server_flags(self, etcd_url):
        key = str(self.home / "sa.key")
        return [
            *("--etcd-servers", etcd_url, "--bind-address", "127.0.0.1", "--secure-port", str(self._port)),
            *("--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none"),
            *(
                "--cert-dir",
                str(self.home / "certificates"),
                "--token-auth-file",
                str(self.home / "tokens.csv"),
            ),
            *("--service-cluster-ip-range", "198.19.0.0/24", "--authorization-mode", "RBAC"),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--allow-privileged"),
            *("--disable-admission-plugins", "ServiceAccount"),
        ]

    def _write_credentials(self):
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.home / "sa.key"), "2048"], check=True, capture_output=True
        )
        (self.home / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        cluster = {"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        user = {"name": "u", "user": {"token": TOKEN}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
        config |= {"clusters": [cluster], "contexts": [context], "users": [user]}
        self.kubeconfig.write_text(json.dumps(config))

    def _is_established(self, crd):
        """Whether the kind is served; `kubectl wait` fails on a CRD that has no conditions yet."""
        conditions = self.get("crd", crd).get("status", {}).get("conditions") or ()
        return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

    def _is_ready(self):
        for name, process in self._processes.items():
            log = (self.home / f"{name}.log").read_text(errors="replace")
            assert process.poll() is None, f"{name} ended: {log[-2000:]}"
        return self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0


@contextmanager
def api_server(home):
    """An API server with our CRD, whose files are in ``home``."""
    server = ApiServer(home)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Operator:
    """One replica of the operator as a process, against an :class:`ApiServer`."""

    def __init__(self, server, namespace="default", identity="one", *flags):
        self.port, self.identity = free_port(), identity
        self.log = server.home / f"operator-{namespace}-{identity}-{self.port}.log"
        command = [sys.executable, "-m", "wisp_operator.main", "--namespace", namespace]
        command += ["--identity", identity, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--advertise", f"127.0.0.1:{self.port}", "--allow-file-below", "/", *flags]
        environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)

    def read(self, path):
        """The text of an endpoint of its port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return answer.read().decode()

    def leads(self):
        """Whether it leads; fails if its process has ended."""
        assert self.process.poll() is None, f"the operator ended: {self.log.read_text()[-3000:]}"
        with suppress(OSError):
            return "\nwisp_operator_is_leader 1" in self.read("/metrics")
        return False

    def rss_mib(self):
        """Resident memory of its process in MiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def stop(self):
        """End it, at the latest after ten seconds."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def model(name, **spec):
    """An InferenceModel's manifest on the CPU, with parts of its spec replaced."""
    base = {"model": {"uri": "file:///srv"}, "gpu": {"count": 0}}
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }
