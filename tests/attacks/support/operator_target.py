"""The operator as its own process against a real API server, and a neighbour with a model.

There is no kubelet: a pod of an attacker is an object whose status names an address of this machine.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from api_server import TOKEN, ApiServer, model
from hostile_pod import Handler, HostilePod
from neighbour import Harm, Target, Watch
from processes import Process, status_of, until

from wisp_operator.local.machine.ports import free_port

MEMORY_LIMIT_MIB = 1024
"""The chart's limit: operator.resources.limits.memory."""
MAX_REACTION_S = 5.0
"""Time for the operator to act on a change of the neighbour's model; a third of a second when idle."""
STEADY_POD = Path(__file__).with_name("steady_pod.py")
RUNTIME_PORT = 8000
MODELS = "/apis/wisp.dev/v1alpha1/namespaces/{}/inferencemodels"
SYSTEM, NEIGHBOUR, ATTACKER = "wisp-system", "neighbour", "attacker"
EVIL = "evil"
"""Name of the attacker's model whose pods answer what an attack says."""


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    """Status of a pod that has started, as a kubelet reports it."""
    container = {
        "name": pod["spec"]["containers"][0]["name"],
        "ready": False,
        "restartCount": 0,
        "image": "x",
        "imageID": "x",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    address = "127.0.0.10"
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    return {**status, "containerStatuses": [container]}


class Api:
    """Requests to the API server without kubectl, which takes a tenth of a second of CPU each."""

    def __init__(self, server: ApiServer) -> None:
        self._url = server.url
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """Send a request and return the document; raises ``urllib.error.HTTPError``."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": f"application/{kind}"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=20, context=self._context) as answer:
            return json.loads(answer.read())


class OperatorTarget(Target):
    """An operator that leads; its neighbour changes a model as the attack ends, and expects an answer."""

    def __init__(self, server: ApiServer, folder: Path, hub_endpoint: str = "") -> None:
        self.server, self.api = server, Api(server)
        for namespace in (SYSTEM, NEIGHBOUR, ATTACKER):
            server.kubectl("create", "namespace", namespace, check=False)
        server.apply(model("good", model={"uri": "pvc://weights/m"}), namespace=NEIGHBOUR)
        port, control_port = free_port(), free_port()
        command = [sys.executable, str(STEADY_POD), str(control_port)]
        self.control = Process("control", command, folder / "control.log")
        command = [sys.executable, "-m", "wisp_operator.main", "--namespace", SYSTEM, "--identity", "one"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--advertise", f"127.0.0.1:{port}"]
        command += ["--lease-s", "3", "--renew-s", "0.5"]
        command += ["--hub-endpoint", hub_endpoint] if hub_endpoint else []
        environment = {"KUBECONFIG": str(server.kubeconfig)}
        self.operator = Process("operator", command, folder / "operator.log", environment)
        until(lambda: status_of(f"http://127.0.0.1:{port}/readyz") == 200, 90)
        until(lambda: status_of(f"http://127.0.0.1:{control_port}/readyz") == 200)
        url, control = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control_port}"
        watch = Watch(
            streams=[
                {"name": "poll", "url": f"{url}/livez", "pause_s": 0.05},
                {"name": "control", "url": f"{control}/livez", "pause_s": 0.05},
            ],
            probes=[f"{url}/readyz", f"{url}/livez"],
        )
        super().__init__([self.operator], port, watch, MEMORY_LIMIT_MIB)
        self._pod: HostilePod | None = None
        self._replicas = count(2)
        until(self._is_observed, 30)
        time.sleep(1)
        self._conditions = self._conditions_of_neighbour()

    def begin_watch(self) -> None:
        """Begin to watch."""
        super().begin_watch()
        self._leader = self._lease()

    def end_watch(self) -> list[Harm]:
        """Harm, and whether the operator still looks after the neighbour's model."""
        harm = super().end_watch()
        scaling = {"spec": {"scaling": {"max": next(self._replicas)}}}
        self.api("PATCH", self._good(), scaling, "merge-patch+json")
        began, deadline = time.monotonic(), time.monotonic() + 20
        while not self._is_observed() and time.monotonic() < deadline:
            time.sleep(0.05)
        if (took_s := time.monotonic() - began) > MAX_REACTION_S:
            harm.append(Harm(f"a change of the neighbour's model took {took_s:.1f} s", is_gap=True))
        if (now := self._conditions_of_neighbour()) != self._conditions:
            harm.append(Harm(f"the neighbour's conditions are {now}, not {self._conditions}"))
        if (lease := self._lease()) != self._leader:
            harm.append(Harm(f"the Lease changed hands: {lease}, not {self._leader}"))
        return harm

    def pods_say(self, handler: Handler, number: int = 1) -> HostilePod:
        """Let the pods of the attacker's model answer with ``handler``; returns once they were asked twice.

        There is no kubelet, so the pods that the controllers make get their status from here.
        """
        if self._pod is None:
            self._pod = HostilePod(handler, "127.0.0.10", RUNTIME_PORT)
        self._pod.handler, self._pod.requests = handler, 0
        self.model(EVIL, model={"uri": "pvc://weights/m"}, replicas=number)
        until(lambda: len(self._run_pods()) >= number, 30)
        until(lambda: self._pod and self._pod.requests >= 2, 20, "the operator never asked the pod")
        return self._pod

    def _run_pods(self) -> list[Any]:
        path = f"/api/v1/namespaces/{ATTACKER}/pods"
        pods = self.api("GET", f"{path}?labelSelector=wisp.dev/model={EVIL}")["items"]
        for pod in pods:
            if not pod["status"].get("podIP"):
                status_path = f"{path}/{pod['metadata']['name']}/status"
                self.api("PATCH", status_path, {"status": _running(pod)}, "merge-patch+json")
        return pods

    def model(self, name: str, **spec: Any) -> None:
        """Apply a model of the attacker's."""
        self.server.apply(model(name, **spec), namespace=ATTACKER)

    @staticmethod
    def manifest(name: str, **spec: Any) -> dict[str, Any]:
        """Manifest of a model."""
        return model(name, **spec)

    def reset(self) -> None:
        """Delete what the attacker has made, but for the model whose pods answer."""
        if self._pod is not None:
            self._pod.handler = lambda connection, _: connection.close()
        for path in (MODELS, "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/services"):
            for found in self.api("GET", path.format(ATTACKER))["items"]:
                name = found["metadata"]["name"]
                if not name.startswith(EVIL):
                    with suppress(urllib.error.HTTPError):
                        self.api("DELETE", f"{path.format(ATTACKER)}/{name}")

    def close(self) -> None:
        """End the operator and the control; the API server stays."""
        super().close()
        self.control.stop()
        if self._pod is not None:
            self._pod.close()

    def _good(self) -> str:
        return f"{MODELS.format(NEIGHBOUR)}/good"

    def _is_observed(self) -> bool:
        found = self.api("GET", self._good())
        return found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]

    def _conditions_of_neighbour(self) -> list[tuple[str, str, str]]:
        conditions = self.api("GET", self._good())["status"]["conditions"]
        return sorted((part["type"], part["status"], part["reason"]) for part in conditions)

    def _lease(self) -> tuple[str, int]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/wisp-operator"
        spec = self.api("GET", path)["spec"]
        return spec["holderIdentity"], spec.get("leaseTransitions", 0)
