"""A cluster of one machine: Deployments in, pods out.

Level-based: :meth:`LocalCluster.apply` sets the desired state and may be repeated; pods start and stop in
the background, and ``changed`` is called after each of their changes, so that its owner applies again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.local import pod_template
from wisp_operator.local.processes import rollout
from wisp_operator.local.processes.pods import Pod, PodContext, PodState

log = logging.getLogger(__name__)

DRAIN_NOTICE_S = 0.2  # the gateway reads the directory about this often


class LocalCluster:
    """The pods of this machine, by model (``namespace/name``)."""

    def __init__(
        self,
        home: Path,
        changed: Callable[[], None],
        device: pod_template.Device = "auto",
        token_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Start nothing yet; ``token_of`` gives the token that the pods of a model ask for, by its key."""
        self._device, self._token_of = device, token_of
        self._home = home
        self._changed = changed
        self._client = RuntimeClient()
        self._pods: dict[str, list[Pod]] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def pods(self, key: str) -> list[Pod]:
        """List the pods of a model, oldest first, those that drain included."""
        return list(self._pods.get(key, ()))

    def apply(self, key: str, deployment: Mapping[str, Any]) -> None:
        """Start and stop pods so that ``deployment`` comes true; finished in the background.

        Raises:
            NotLocal: the pod template needs what only a cluster has.
        """
        wanted = pod_template.read(deployment)
        pods = self._pods.setdefault(key, [])
        views = [
            rollout.PodView(pod.name, pod.template.digest, pod.state == PodState.READY, pod.created)
            for pod in pods
            if not pod.is_draining
        ]
        count, stop = rollout.plan(_desired_pods(wanted.digest, deployment), views)
        for _ in range(count):
            pods.append(self._start(deployment["metadata"], wanted))
        for pod in [pod for pod in pods if pod.name in stop]:
            self._drain(key, pod)

    def delete(self, key: str) -> None:
        """Stop every pod of a model that is no longer served."""
        for pod in self.pods(key):
            if not pod.is_draining:
                self._drain(key, pod)

    async def close(self, grace_s: float) -> None:
        """Stop everything, each pod within ``grace_s`` seconds; done when no process is left."""
        pods = [pod for pods in self._pods.values() for pod in pods]
        for error in await asyncio.gather(*(pod.stop(grace_s) for pod in pods), return_exceptions=True):
            if isinstance(error, BaseException):  # the others are stopped all the same
                log.error("a pod could not be stopped in order: %r", error)
        await asyncio.gather(*self._stopping, return_exceptions=True)
        await self._client.close()

    def _start(self, metadata: Mapping[str, Any], wanted: pod_template.Template) -> Pod:
        home = self._home / str(metadata.get("namespace", "default"))
        home.mkdir(parents=True, exist_ok=True)
        name = f"{metadata['name']}-{wanted.digest[:5]}-{secrets.token_hex(3)}"
        token = self._token_of(f"{metadata.get('namespace', 'default')}/{metadata['name']}")
        return Pod(name, wanted, PodContext(home, self._client, self._changed, self._device, token))

    def _drain(self, key: str, pod: Pod) -> None:
        pod.is_draining = True
        task = asyncio.create_task(self._stop(key, pod), name=f"stop {pod.name}")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self, key: str, pod: Pod) -> None:
        self._changed()
        await asyncio.sleep(DRAIN_NOTICE_S)
        await pod.stop()
        self._pods[key].remove(pod)
        self._changed()


def _desired_pods(digest: str, deployment: Mapping[str, Any]) -> rollout.DesiredPods:
    spec = deployment["spec"]
    update = spec.get("strategy", {}).get("rollingUpdate", {})
    surge, unavailable = update.get("maxSurge", 1), update.get("maxUnavailable", 0)
    return rollout.DesiredPods(digest, int(spec.get("replicas", 1)), int(surge), int(unavailable))
