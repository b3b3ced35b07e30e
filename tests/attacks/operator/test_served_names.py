"""Served names: the first holder keeps its name, a changed one answers on, a gateway follows the operator."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from api_server import free_port, model, until


@pytest.fixture
def stranger(server, namespace):
    """Another tenant's namespace."""
    name = f"{namespace}-stranger"
    server.kubectl("create", "namespace", name)
    yield name
    server.delete_namespace(name)


@contextmanager
def gateway(server):
    """A gateway of the whole cluster; yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", "wisp_gateway", "--directory", "kubernetes", "--port", str(port)]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def owners(url):
    """The owner of each id in ``/v1/models``; None before the gateway answers."""
    with suppress(OSError), urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        return {card["id"]: card["owned_by"] for card in json.loads(answer.read())["data"]}


def asked(url, name):
    """Status of a request for ``name``."""
    headers = {"content-type": "application/json"}
    body = json.dumps({"model": name, "messages": []}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def named(server, name, namespace):
    """Status and reason of the condition, and the names that are granted."""
    found = server.condition(name, "Named", namespace)
    return found.get("status"), found.get("reason"), server.status(name, namespace).get("names")


def test_a_name_stays_with_its_first_holder_through_renames_deletion_and_a_new_gateway(
    server, operator, namespace, stranger
):
    server.apply(model("thief"), namespace=stranger)  # the older of the two
    server.apply(model("llama"), namespace=namespace)
    until(lambda: named(server, "llama", namespace) == ("True", "NameHeld", ["llama"]))
    renamed = {"uri": "file:///srv", "servedName": "llama"}
    server.apply(model("thief", model=renamed), namespace=stranger)
    until(lambda: named(server, "thief", stranger) == ("False", "ServedNameTaken", ["thief"]))
    assert namespace not in server.condition("thief", "Named", stranger)["message"].split()
    with gateway(server) as url:
        until(lambda: (owners(url) or {}).get("llama") == namespace)
        assert owners(url)[f"{stranger}/thief"] == stranger
        server.kubectl("delete", "imodel", "llama", "-n", namespace, "--timeout=20s")
        until(lambda: "llama" not in owners(url))
    with gateway(server) as url:  # it has never seen the holder
        until(lambda: owners(url))
        assert "llama" not in owners(url)
        server.apply(model("llama"), namespace=namespace)
        until(lambda: owners(url).get("llama") == namespace)
    until(lambda: named(server, "llama", namespace) == ("True", "NameHeld", ["llama"]))
    assert named(server, "thief", stranger)[0] == "False"
    events = server.get("events.events.k8s.io", namespace=stranger)
    assert [event["reason"] for event in events].count("ServedNameTaken") == 1


def test_a_served_name_like_another_models_key_is_none(server, operator, namespace, stranger):
    asks = {"uri": "file:///srv", "servedName": f"{namespace}/absent"}
    server.apply(model("impostor", model=asks), namespace=stranger)
    until(lambda: named(server, "impostor", stranger) == ("False", "ServedNameTaken", ["impostor"]))


class Runtime(ThreadingHTTPServer):
    """A runtime of one served name, which knows ``metadata.name`` besides.

    Its pod's address is on the loopback, where the operator asks it; an EndpointSlice may hold none of those,
    so the gateway reaches the same server at this machine's own address and another port.
    """

    daemon_threads = True

    def __init__(self, address, served):
        super().__init__(address, Answers)
        self.served = served
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(BaseHTTPRequestHandler):
    """``/state`` and requests by name."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer(200, {"model": self.server.served, "status": "ready"})

    def do_POST(self):
        name = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        self.answer(200 if name in ("llama", self.server.served) else 404, {})

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def start_runtime():
    """Start a runtime of a served name; returns the pod's address and the gateway's."""
    started = []

    def start(host, served):
        started.extend([Runtime((host, 8000), served), Runtime((own_address(), 0), served)])
        return host, started[-1].server_address

    yield start
    for runtime in started:
        runtime.shutdown()
        runtime.server_close()


def own_address():
    """An address of this machine that is not on the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return probe.getsockname()[0]


def run_newest_pod(server, namespace, runtime, others=()):
    """Say of the newest pod what a scheduler and a kubelet would say, and list it as an endpoint."""

    def newest():
        found = [item["metadata"]["name"] for item in server.get("pods", namespace=namespace)]
        return next((name for name in found if name not in others), None)

    host, (address, port) = runtime
    name = until(newest)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
    binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    server.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    container = {"name": "runtime", "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
    status = {
        "phase": "Running",
        "podIP": host,
        "podIPs": [{"ip": host}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
        "containerStatuses": [{**container, "state": {"running": {"startedAt": now}}}],
    }
    patch = json.dumps({"status": status})
    server.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    labels = {"wisp.dev/model": "llama", "kubernetes.io/service-name": "llama"}
    slice_of_one = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
    server.apply(slice_of_one, namespace=namespace)
    return name


def test_a_changed_name_answers_until_no_pod_has_it_also_without_a_place_for_the_new_pod(
    server, operator, namespace, start_runtime
):
    def served_as(name):
        return model("llama", replicas=1, model={"uri": "file:///srv", "servedName": name})

    server.apply(served_as("alpha"), namespace=namespace)
    old = run_newest_pod(server, namespace, start_runtime("127.0.0.81", "alpha"))
    until(lambda: server.condition("llama", "Ready", namespace).get("reason") == "Serving")
    with gateway(server) as url:
        until(lambda: owners(url) and asked(url, "alpha") == 200)
        server.apply(served_as("beta"), namespace=namespace)
        until(lambda: asked(url, "beta") == 200)
        until(lambda: server.status("llama", namespace).get("names") == ["alpha", "beta", "llama"])
        until(lambda: len(server.get("pods", namespace=namespace)) == 2)  # the new one has no node
        names = ("alpha", "beta", "llama", f"{namespace}/llama")
        assert [asked(url, name) for name in names] == [200] * 4
        run_newest_pod(server, namespace, start_runtime("127.0.0.82", "beta"), (old,))
        until(
            lambda: server.status("llama", namespace).get("names") == ["beta", "llama"]
        )  # the old one drains
        until(lambda: asked(url, "alpha") == 404)
        assert [asked(url, name) for name in names[1:] * 4] == [200] * 12  # of both pods, each by its name
