"""The gateway as its own process, a directory file beside it, and steady pods behind it."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from hostile_pod import Handler, HostilePod
from neighbour import Target, Watch
from processes import Process, status_of, until
from wire import CHAT_PATH, Answer, chat, post

from wisp_operator.local.machine.ports import free_port

MEMORY_LIMIT_MIB = 512
"""The chart's limit: gateway.resources.limits.memory."""
STEADY_POD = Path(__file__).with_name("steady_pod.py")
KEY = "the-key-of-locked"
SEEN_S = 0.4
OWN_MODELS = ("default/good", "default/other", "default/locked", "default/mine", "default/asleep")


class Directory:
    """The gateway's directory: a file of models, written anew at every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models: dict[str, dict[str, Any]] = {}

    def put(self, name: str, *addresses: str, namespace: str = "default", **fields: Any) -> None:
        """Add or replace a model with these pods."""
        is_ready = fields.pop("ready", True)
        endpoints = [
            {"id": f"{name}-{address}", "address": address, "ready": is_ready, "draining": False}
            for address in addresses
        ]
        document = {"namespace": namespace, "name": name, "state": "Ready", "endpoints": endpoints}
        self.models[f"{namespace}/{name}"] = {**document, **fields}
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"models": list(self.models.values())}))
        partial.replace(self.path)


class GatewayTarget(Target):
    """A gateway with models of neighbours and of the attacker.

    Neighbours ask ``good``, ``other`` and ``locked`` (which needs a key). The attacker's are ``mine``,
    whose pod is of another process than theirs, and ``asleep``.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        pod_port, own_port, port = free_port(), free_port(), free_port()
        self.pod_address = f"127.0.0.1:{pod_port}"
        self.steady_pods = [
            Process(f"pod-{number}", [sys.executable, str(STEADY_POD), str(number)], folder / "pods.log")
            for number in (pod_port, own_port)
        ]
        keys = folder / "keys"
        keys.write_text(f"tenant:{KEY}\n")
        self.directory = Directory(folder / "models.json")
        self.directory.put("good", self.pod_address, targetConcurrency=1000)
        self.directory.put("other", self.pod_address, targetConcurrency=1000)
        self.directory.put("locked", self.pod_address, apiKeysFile=str(keys))
        self.directory.put("mine", f"127.0.0.1:{own_port}", targetConcurrency=1000)
        hold = {"mode": "Hold", "maxWaitSeconds": 3, "heartbeatSeconds": 1, "queueLimit": 128}
        self.directory.put("asleep", state="Asleep", coldStart=hold)
        command = [sys.executable, "-m", "wisp_gateway", "--directory", str(self.directory.path)]
        command += ["--port", str(port), "--header-timeout-s", "3", "--body-timeout-s", "4"]
        command += ["--write-timeout-s", "2", *flags]
        self.gateway = Process("gateway", command, folder / "gateway.log")
        for server in (port, pod_port, own_port):
            until(lambda server=server: status_of(f"http://127.0.0.1:{server}/readyz") == 200)
        super().__init__([self.gateway], port, self._neighbours(port, pod_port), MEMORY_LIMIT_MIB)
        self._pods: list[HostilePod] = []

    def pod_of(self, name: str, handler: Handler, **fields: Any) -> HostilePod:
        """Make a model whose only pod is an attacker's, and wait until the gateway has seen it."""
        pod = HostilePod(handler)
        self._pods.append(pod)
        self._put(name, pod.address, **fields)
        return pod

    def pods_of(self, name: str, handlers: list[Handler], **fields: Any) -> None:
        """Make a model of several attackers' pods."""
        pods = [HostilePod(handler) for handler in handlers]
        self._pods += pods
        self._put(name, *(pod.address for pod in pods), **fields)

    def _put(self, name: str, *addresses: str, **fields: Any) -> None:
        """Put a model into the directory and wait until the gateway routes to its pods."""
        self.directory.put(name, *addresses, **fields)
        key = (fields.get("namespace", "default"), name)

        def is_routed() -> bool:
            with urllib.request.urlopen(f"{self.url}/state", timeout=60) as answer:
                models = json.loads(answer.read())["models"]
            routed = {(m["namespace"], m["name"]): m["endpoints"] for m in models}
            return {entry["address"] for entry in routed.get(key, ())} == set(addresses)

        until(is_routed)

    def ask(self, name: str, timeout_s: float = 30.0, **fields: Any) -> Answer:
        """Send a chat to a model; status 0 where no answer came in time."""
        with self.connect(timeout_s=timeout_s) as client:
            return client.send(post(CHAT_PATH, chat(name, **fields))).answer()

    def reset(self) -> None:
        """Take every attacker's model off the directory."""
        self.directory.models = {key: self.directory.models[key] for key in OWN_MODELS}
        self.directory.write()
        for pod in self._pods:
            pod.close()
        self._pods.clear()

    def until_seen(self) -> None:
        """Wait until the gateway has read the directory anew; it looks ten times a second."""
        time.sleep(SEEN_S)

    def close(self) -> None:
        """End everything."""
        super().close()
        for pod in self.steady_pods:
            pod.stop()
        for hostile_pod in self._pods:
            hostile_pod.close()

    @staticmethod
    def _neighbours(port: int, pod_port: int) -> Watch:
        message = {"role": "user", "content": "a neighbour"}
        body = {"messages": [message], "stream": True, "max_tokens": 1500}
        past, through = f"http://127.0.0.1:{pod_port}", f"http://127.0.0.1:{port}"
        path = "/v1/chat/completions"
        return Watch(
            streams=[
                {"name": "stream", "url": through + path, "body": {**body, "model": "good"}},
                {"name": "control", "url": past + path, "body": {**body, "model": "good"}},
            ],
            answers=[
                {"name": "other", "url": through + path, "body": {"model": "other", "messages": [message]}},
                {
                    "name": "locked",
                    "url": through + path,
                    "body": {"model": "locked", "messages": [message]},
                    "headers": {"authorization": f"Bearer {KEY}"},
                },
            ],
            probes=[f"{through}/readyz", f"{through}/livez"],
        )
