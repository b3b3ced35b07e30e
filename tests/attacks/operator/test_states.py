"""A pod that answers ``/state`` as no runtime does: its model's matter, and no other's.

Pods are objects of a real API server, made by its ReplicaSet controller; there is no kubelet, so the fixture
says in their status that they run, on an address of the loopback where this process answers.
"""

import gzip
import json
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from api_server import Operator, model, until

EVIL, GOOD, PORT = "127.0.0.77", "127.0.0.78", 8000


@cache
def bomb():
    """A quarter of a gigabyte in a few kilobytes; made once: this process is the good pod too."""
    return gzip.compress(b" " * (256 << 20))


HOSTILE = {
    "phases-null": (b'{"phases": null}', {}),
    "phase-number": (b'{"phases": [1]}', {}),
    "nesting": (b"[" * 60_000, {}),
    "long-nesting": (b'{"a":' * 100_000, {}),
    "beyond-float": (b'{"load": {"running": 1e400}}', {}),
    "nan": (b'{"load": {"running": NaN}}', {}),
    "beyond-int32": (b'{"load": {"running": 99999999999}}', {}),
    "negative": (b'{"ledger": {"fits": true, "weightsBytes": -1}}', {}),
    "phases-many": (json.dumps({"phases": [{"name": "x"}] * 2000}).encode(), {}),
    "32-mib": (b" " * (32 << 20), {}),
    "bomb": (bomb, {"content-encoding": "gzip"}),
    "charset": (b"{}", {"content-type": "application/json; charset=nope"}),
    "redirect-loop": (b"", {"location": f"http://{EVIL}:{PORT}/state"}),
    "slow": (b" " * 100, {"x-pause": "0.2"}),
}


class Pods(BaseHTTPRequestHandler):
    """Both pods: the address decides which one answers."""

    evil = HOSTILE["phases-null"]
    seconds = 0

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.connection.getsockname()[0] == GOOD:
            phases = [{"name": "import", "seconds": type(self).seconds, "state": "done"}]
            self.answer(json.dumps({"status": "ready", "phases": phases}).encode(), {})
        else:
            self.answer(*type(self).evil)

    def answer(self, body, headers):
        body = body() if callable(body) else body
        self.send_response(307 if "location" in headers else 200)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            if "x-pause" not in headers:
                self.wfile.write(body)
                return
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(float(headers["x-pause"]))
        except OSError:
            pass  # the operator had enough


@pytest.fixture(scope="module")
def world(server):
    """An operator with two models, each with a pod that runs; the namespace."""
    listeners = [ThreadingHTTPServer((host, PORT), Pods) for host in (EVIL, GOOD)]
    for listener in listeners:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
    server.kubectl("create", "namespace", "states")
    operator = Operator(server, "states", "one", "--lease-s", "2", "--renew-s", "0.5")
    try:
        until(operator.leads)
        server.apply(model("evil", replicas=1), model("good", replicas=1), namespace="states")
        run(server, "evil", EVIL)
        run(server, "good", GOOD)
        until(lambda: server.condition("good", "Ready", "states").get("reason") == "Serving")
        yield operator
    finally:
        operator.stop()
        server.delete_namespace("states")
        for listener in listeners:
            listener.shutdown()
            listener.server_close()


def run(server, name, host):
    """Say of the model's pod what a scheduler and a kubelet would say."""

    def pod():
        pods = server.get("pods", namespace="states")
        return next((item for item in pods if item["metadata"]["labels"]["wisp.dev/model"] == name), None)

    found = until(pod)["metadata"]["name"]
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": found}}
    binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    path = f"/api/v1/namespaces/states/pods/{found}/binding"
    server.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    container = {"name": "runtime", "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
    container["state"] = {"running": {"startedAt": now}}
    status = {
        "phase": "Running",
        "podIP": host,
        "podIPs": [{"ip": host}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
        "containerStatuses": [container],
    }
    patch = json.dumps({"status": status})
    server.kubectl("patch", "pod", found, "-n", "states", "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_a_pods_state_hurts_no_other_model(server, world, answer):
    before_mib = world.rss_mib()
    Pods.evil = answer

    def is_followed():
        assert world.process.poll() is None, world.log.read_text()[-3000:]
        return server.status("good", "states")["coldStart"].get("phases", {}).get("import") == Pods.seconds

    for _ in range(2):  # the second time, the other pod was asked as well
        Pods.seconds += 1
        until(is_followed, every=0.2)
    assert world.leads()
    assert server.condition("good", "Ready", "states")["reason"] == "Serving"
    assert world.rss_mib() - before_mib < 64
