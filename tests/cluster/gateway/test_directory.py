"""The gateway on a real API server: its directory, its speed, its rights, and that it loses nothing."""

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
import yaml
from kube import apply, fake, kubectl, model, until
from machine_pace import pace

ACCOUNT = "wisp-gateway"
RULES = [
    {"apiGroups": ["wisp.dev"], "resources": ["inferencemodels"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]


class Gateway:
    """``wisp-gateway`` as a process beside the cluster; its own key opens ``/state`` and every model."""

    def __init__(self, log, *flags, has_own_key=True, **environment):
        self.log = log
        self.own_key = "sk-door" if has_own_key else ""
        if has_own_key:
            keys = log.with_suffix(".keys")
            keys.write_text(f"door:{self.own_key}\n")
            flags = (*flags, "--api-keys", str(keys))
        command = [sys.executable, "-m", "wisp_gateway", "--directory", "kubernetes", "--port", "0", *flags]
        self.process = subprocess.Popen(
            command, stderr=log.open("w"), env={**os.environ, **environment}, stdout=subprocess.DEVNULL
        )
        until(lambda: "listening on" in log.read_text())
        self.port = int(log.read_text().partition("listening on ")[2].split()[0].rpartition(":")[2])

    def ask(self, method, path, body=None, key=None):
        """Status and text of one request on a connection of its own, by default with the gateway's key."""
        key = self.own_key if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= {"Content-Type": "application/json"} if body else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def is_ready(self):
        return self.ask("GET", "/readyz")[0] == 200

    def models(self):
        return {found["name"]: found for found in json.loads(self.ask("GET", "/state")[1])["models"]}

    def endpoints(self, name="chat"):
        return {endpoint["id"]: endpoint["ready"] for endpoint in self.models()[name]["endpoints"]}

    def chat(self, key=None, **more):
        return self.ask("POST", "/v1/completions", {"model": "chat", "prompt": "hi", **more}, key)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start_gateway(tmp_path):
    started = []

    def starting(*flags, **settings):
        started.append(Gateway(tmp_path / f"gateway-{len(started)}.log", *flags, **settings))
        return started[-1]

    yield starting
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()
        lines = [line for line in gateway.log.read_text().splitlines() if " 200 " not in line]
        print("--- log of the gateway", *lines[-30:], sep="\n")


def own_address():
    """An address of this machine that an EndpointSlice may carry: not the loopback."""
    server = yaml.safe_load(kubectl("config", "view", "--minify", "-o", "yaml"))["clusters"][0]["cluster"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((urlsplit(server["server"]).hostname, 9))
        return probe.getsockname()[0]


class Pod(BaseHTTPRequestHandler):
    """A runtime that says which pod it is, in five events over 100 ms."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200 if self.server.is_ready else 503, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.served += 1
        if not body.get("stream"):
            time.sleep(0.05)
            self.answer(200, json.dumps({"pod": self.server.name}).encode())
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(5):
            self.chunk(b'data: {"pod": "%b"}\n\n' % self.server.name.encode())
            time.sleep(0.02)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A gateway that hangs up is no news."""


@pytest.fixture
def pods():
    """Two fake runtimes on an address that the cluster knows."""
    started = []
    for name in ("pod-a", "pod-b"):
        server = Server((own_address(), 0), Pod)
        server.name, server.is_ready, server.served = name, True, 0
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        started.append(server)
    yield started
    for server in started:
        server.shutdown()
        server.server_close()


def endpoint_slice(pod, **conditions):
    """An EndpointSlice by hand, as the controller would write it for a pod of model ``chat``."""
    host, port = pod.server_address
    labels = {"wisp.dev/model": "chat", "kubernetes.io/service-name": "chat"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"chat-{pod.name}", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": conditions, "targetRef": {"name": pod.name}}],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


READY = {"ready": True, "serving": True, "terminating": False}
STARTING = {"ready": False, "serving": False, "terminating": False}
LEAVING = {"ready": False, "serving": True, "terminating": True}


def test_models_and_pods_are_seen_as_they_come_change_and_go(start_gateway, pods, namespace):
    gateway = start_gateway("--namespace", namespace)
    until(gateway.is_ready)
    assert gateway.models() == {}
    apply(model("chat", coldStart={"maxWait": "20s"}), namespace=namespace)
    until(lambda: "chat" in gateway.models())
    apply(endpoint_slice(pods[0], **STARTING), namespace=namespace)
    until(lambda: gateway.endpoints() == {"pod-a": False})
    began = time.monotonic()
    assert gateway.chat() == (200, '{"pod": "pod-a"}')  # it answers its probe before the slice says so
    print(f"a pod that answers before the cluster noticed was used after {time.monotonic() - began:.3f} s")
    apply(endpoint_slice(pods[1], **READY), namespace=namespace)
    until(lambda: gateway.endpoints() == {"pod-a": True, "pod-b": True})
    apply(endpoint_slice(pods[0], **LEAVING), namespace=namespace)
    until(lambda: gateway.endpoints() == {"pod-a": False, "pod-b": True})
    assert {gateway.chat()[1] for _ in range(5)} == {'{"pod": "pod-b"}'}
    kubectl("delete", "imodel", "chat", "-n", namespace)
    until(lambda: gateway.models() == {})
    assert gateway.end() == 0


def test_a_change_reaches_the_gateway_within_moments(start_gateway, pods, namespace):
    apply(model("chat"), endpoint_slice(pods[0], **READY), namespace=namespace)
    gateway = start_gateway("--namespace", namespace)
    until(lambda: gateway.is_ready() and gateway.endpoints() == {"pod-a": True})
    took = []
    with pace() as machine:
        for wanted in (False, True) * 3:
            apply(endpoint_slice(pods[0], **(READY if wanted else LEAVING)), namespace=namespace)
            began = time.monotonic()  # kubectl has returned: the server had it a moment earlier
            until(lambda wanted=wanted: gateway.endpoints() == {"pod-a": wanted}, every=0.005)
            took.append(time.monotonic() - began)
    print("slice to gateway, ms after kubectl returned:", [round(1000 * seconds) for seconds in took])
    assert max(took) < 2 * machine.stretch


def test_no_request_is_lost_while_pods_come_and_go_behind_two_gateways(start_gateway, pods, namespace):
    apply(model("chat"), *(endpoint_slice(pod, **READY) for pod in pods), namespace=namespace)
    gateways = [start_gateway("--namespace", namespace, "--shutdown-delay-s", "5") for _ in range(2)]
    until(lambda: all(gateway.is_ready() and len(gateway.endpoints()) == 2 for gateway in gateways))
    is_over, answers = threading.Event(), []

    def client(number):
        """Alternate streamed and plain requests; like a Service, use a gateway only while it is ready."""
        count = 0
        while not is_over.is_set():
            count += 1
            taking = [g for g in gateways if g.process.poll() is None and g not in leaving]
            status, text = taking[(number + count) % len(taking)].chat(stream=count % 2 == 0)
            answers.append((status, "[DONE]" in text if count % 2 == 0 else '"pod"' in text))

    leaving = []
    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(client, number) for number in range(8)]
        for _ in range(3):
            for pod in pods:
                apply(endpoint_slice(pod, **LEAVING), namespace=namespace)
                time.sleep(0.3)
                apply(endpoint_slice(pod, **READY), namespace=namespace)
                time.sleep(0.3)
        gateways[0].process.send_signal(signal.SIGTERM)
        time.sleep(0.5)  # a Service's delay
        leaving.append(gateways[0])
        assert gateways[0].process.wait(30) == 0
        time.sleep(1)
        is_over.set()
        for request in running:
            request.result(30)
    print(f"{len(answers)} requests, {sum(answer == (200, True) for answer in answers)} answered whole")
    assert [answer for answer in answers if answer != (200, True)] == []
    assert min(pod.served for pod in pods) > 10


def kubeconfig_of_account(tmp_path, namespace):
    """A kubeconfig that acts as the gateway's service account, with the rights of RULES in one namespace."""
    kubectl("create", "serviceaccount", ACCOUNT, "-n", namespace)
    role = {"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ACCOUNT}}
    apply({**role, "rules": RULES}, namespace=namespace)
    bind(namespace, ACCOUNT)
    document = yaml.safe_load(kubectl("config", "view", "--minify", "--raw", "-o", "yaml"))
    document["users"][0]["user"] = {"token": kubectl("create", "token", ACCOUNT, "-n", namespace).strip()}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def bind(namespace, role):
    kubectl(
        *("create", "rolebinding", role, "-n", namespace),
        *(f"--role={role}", f"--serviceaccount={namespace}:{ACCOUNT}"),
    )


def secret(name, **values):
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def test_the_documented_rights_are_enough_and_keys_need_one_more(start_gateway, pods, namespace, tmp_path):
    keyed = model("chat", access={"apiKeySecretRef": {"name": "chat-keys"}})
    keys = secret("chat-keys", alice="sk-1")
    apply(keyed, keys, secret("other", x="x"), endpoint_slice(pods[0], **READY), namespace=namespace)
    config = kubeconfig_of_account(tmp_path, namespace)
    gateway = start_gateway("--namespace", namespace, has_own_key=False, KUBECONFIG=str(config))
    until(gateway.is_ready)
    assert gateway.chat(key="sk-1")[0] == 503  # it may not read the Secret, so nobody knows the keys
    until(lambda: "kubectl create role " in gateway.log.read_text())
    kubectl(
        *("create", "role", "wisp-gateway-keys", "-n", namespace),
        *("--verb=get", "--resource=secrets", "--resource-name=chat-keys"),
    )
    bind(namespace, "wisp-gateway-keys")
    until(lambda: gateway.chat(key="sk-1")[0] == 200)
    assert gateway.chat(key="sk-2")[0] == 401
    assert gateway.chat()[0] == 401
    for verb, what, allowed in (
        ("list", "inferencemodels", True),
        ("watch", "endpointslices", True),
        ("get", "secrets/chat-keys", True),
        ("get", "secrets/other", False),
        ("list", "secrets", False),
        ("watch", "secrets", False),
        ("get", "pods", False),
        ("update", "inferencemodels", False),
        ("create", "endpointslices", False),
        ("get", "configmaps", False),
    ):
        done = kubectl("--kubeconfig", str(config), "auth", "can-i", verb, what, "-n", namespace, check=False)
        assert (done.stdout.strip() == "yes") == allowed, (verb, what)


def test_a_request_wakes_a_model_through_the_operator_and_is_passed_on_to_its_pod(
    operator, start_gateway, namespace
):
    apply(
        model("chat", runtime=fake(ready_after="1s"), coldStart={"maxWait": "60s", "heartbeat": "300ms"}),
        namespace=namespace,
    )
    demand = f"http://127.0.0.1:{operator.port}/demand"
    gateway = start_gateway("--namespace", namespace, "--demand-url", demand)
    until(lambda: gateway.is_ready() and gateway.models().get("chat", {}).get("reason") == "ScaledToZero")
    began = time.monotonic()
    name = f"{namespace}/chat"  # another test's namespace may keep the bare name while it goes
    with ThreadPoolExecutor() as clients:
        streamed = clients.submit(gateway.chat, model=name, stream=True)
        status, text = gateway.chat(model=name)
    took = time.monotonic() - began
    # The fake runtime knows no /v1: that its 404s were counted is the proof that the request reached a pod.
    assert (status, json.loads(text)["error"]["code"]) == (503, "pods_refused")
    assert ": waking" in streamed.result()[1]
    found = until(lambda: (chat := gateway.models()["chat"])["state"] == "Ready" and chat)
    print(f"woken in {took:.2f} s; the gateway counts {found['lastColdStartSeconds']:.2f} s")
