"""The gateway as its own process, a directory file beside it, and steady pods behind it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from hostile_pod import Handler, HostilePod
from neighbour import Target, Watch
from processes import Process, free_port, status_of, until

MEMORY_LIMIT_MIB = 512
"""The chart's limit: gateway.resources.limits.memory."""
STEADY_POD = Path(__file__).with_name("steady_pod.py")
KEY = "the-key-of-locked"


class Directory:
    """The gateway's directory: a file of models, written anew at every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models: dict[str, dict[str, Any]] = {}

    def put(self, name: str, *addresses: str, namespace: str = "default", **fields: Any) -> None:
        """Add or replace a model with these pods."""
        endpoints = [
            {"id": f"{name}-{address}", "address": address, "ready": True, "draining": False}
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
    """A gateway with four models: ``good`` and ``other`` (steady pods), ``locked`` (a key), ``asleep``."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        pod_port, port = free_port(), free_port()
        self.pod_address = f"127.0.0.1:{pod_port}"
        self.pod = Process("pod", [sys.executable, str(STEADY_POD), str(pod_port)], folder / "pod.log")
        keys = folder / "keys"
        keys.write_text(f"tenant:{KEY}\n")
        self.directory = Directory(folder / "models.json")
        self.directory.put("good", self.pod_address, targetConcurrency=1000)
        self.directory.put("other", self.pod_address, targetConcurrency=1000)
        self.directory.put("locked", self.pod_address, apiKeysFile=str(keys))
        hold = {"mode": "Hold", "maxWaitSeconds": 3, "heartbeatSeconds": 1, "queueLimit": 128}
        self.directory.put("asleep", state="Asleep", coldStart=hold)
        command = [sys.executable, "-m", "wisp_gateway", "--directory", str(self.directory.path)]
        command += ["--port", str(port), "--header-timeout-s", "3", "--body-timeout-s", "4", *flags]
        self.gateway = Process("gateway", command, folder / "gateway.log")
        for server in (port, pod_port):
            until(lambda server=server: status_of(f"http://127.0.0.1:{server}/readyz") == 200)
        super().__init__([self.gateway], port, self._neighbours(port, pod_port), MEMORY_LIMIT_MIB)
        self._pods: list[HostilePod] = []

    def pod_of(self, name: str, handler: Handler, **fields: Any) -> HostilePod:
        """Make a model whose only pod is an attacker's, and wait until the gateway has seen it."""
        pod = HostilePod(handler)
        self._pods.append(pod)
        self.directory.put(name, pod.address, **fields)
        until(lambda: status_of(f"{self.url}/v1/models/{name}") == 200)
        return pod

    def until_seen(self) -> None:
        """Wait until the gateway has read the directory anew; it looks every half second."""
        time.sleep(1.0)

    def close(self) -> None:
        """End everything."""
        super().close()
        self.pod.stop()
        for pod in self._pods:
            pod.close()

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
