"""Status of models held against their pods, as the kubelet reports them, while a test runs.

``Truth`` watches both in one namespace and keeps every moment at which a status contradicts a pod; a
contradiction may last :data:`PATIENCE_S`, the time an operator has to see and to say it.
"""

import threading
import time
from typing import NamedTuple

from api import Watch

PATIENCE_S = 5.0
BAD_WAITS = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff"),
    *("CreateContainerError", "CreateContainerConfigError", "RunContainerError"),
)
UNPULLED = ("ErrImagePull", "ImagePullBackOff")


class Claim(NamedTuple):
    """What the conditions of a model said from some time on."""

    at: float
    conditions: frozenset  # (type, status, reason)
    failure: str


class Untruth(NamedTuple):
    """A contradiction of a status and a pod, from ``since`` to ``until`` in Unix seconds."""

    model: str
    text: str
    since: float
    until: float


class Truth:
    """Statuses and pods of one namespace, and the contradictions between them."""

    def __init__(self, namespace):
        self._lock, self._open = threading.Lock(), {}
        self.ended, self.claims = [], {}
        self._watches = {kind: Watch(kind, namespace, self._changed) for kind in ("inferencemodels", "pods")}

    def model(self, name):
        """The InferenceModel as last seen; empty if there is none."""
        return self._watches["inferencemodels"].objects.get(name, {})

    def pods(self, name):
        """The model's pods as last seen."""
        found = self._watches["pods"].objects.values()
        return [pod for pod in found if pod["metadata"].get("labels", {}).get("wisp.dev/model") == name]

    def said(self, name, since):
        """Every (type, status, reason) that the model had from ``since`` on, and its reasons of failures."""
        conditions, failures = set(), set()
        with self._lock:
            for claim in self.claims.get(name, []):
                if claim.at >= since:
                    conditions |= claim.conditions
                    failures.add(claim.failure)
        return conditions, failures - {""}

    def untruths(self, name, since, longer_than=PATIENCE_S):
        """Contradictions that lasted longer than an operator may take, from ``since`` on."""
        now = time.time()
        with self._lock:
            lasting = [Untruth(*key, began, now) for key, began in self._open.items()]
            found = [u for u in self.ended + lasting if u.model == name and u.until > since]
        return [u for u in found if u.until - max(u.since, since) > longer_than]

    def end(self):
        """Watch no more."""
        for watch in self._watches.values():
            watch.end()

    def _changed(self, kind, found):
        if found is None:
            return
        labels = found["metadata"].get("labels", {})
        name = found["metadata"]["name"] if kind == "inferencemodels" else labels.get("wisp.dev/model")
        if name is None:
            return
        now, model = time.time(), self.model(name)
        with self._lock:
            if kind == "inferencemodels":
                self._claimed(name, model.get("status", {}), now)
            self._judge(name, contradictions(model, self.pods(name)) if model else set(), now)

    def _claimed(self, name, status, now):
        conditions = frozenset((c["type"], c["status"], c["reason"]) for c in status.get("conditions", []))
        failure = status.get("lastFailure", {}).get("reason", "")
        self.claims.setdefault(name, []).append(Claim(now, conditions, failure))

    def _judge(self, name, texts, now):
        for key in [key for key in self._open if key[0] == name and key[1] not in texts]:
            self.ended.append(Untruth(*key, self._open.pop(key), now))
        for text in texts:
            self._open.setdefault((name, text), now)


def contradictions(model, pods):
    """Everything that the status says and a pod contradicts, in words."""
    status = model.get("status", {})
    said = {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])}
    live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    ready, waits = [pod for pod in live if is_ready(pod)], [wait for pod in live for wait in failing(pod)]
    uri = model["spec"]["model"]["uri"]
    claims = {
        "Ready is True, Serving, and no pod is ready": said.get("Ready") == ("True", "Serving") and not ready,
        "Ready is False, and a pod is ready": said.get("Ready", ("",))[0] == "False" and ready,
        "readyReplicas is not the number of ready pods": status.get("readyReplicas", 0) != len(ready),
        "Degraded is not True, and a pod fails": waits and said.get("Degraded", ("",))[0] != "True",
        "ArtifactsReady is True, and its image cannot be pulled": uri.startswith("oci://")
        and set(waits) & set(UNPULLED)
        and said.get("ArtifactsReady", ("",))[0] == "True",
        "Scheduled is not False, and a pod has no node": any(map(has_no_node, live))
        and said.get("Scheduled", ("",))[0] != "False",
        "observedGeneration is not that of the spec": status.get("observedGeneration")
        != model["metadata"]["generation"],
    }
    return {text for text, holds in claims.items() if holds}


def is_ready(pod):
    """Whether the kubelet says that the pod is ready, and it is not on its way out."""
    conditions = pod["status"].get("conditions", ())
    says_so = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return says_so and "deletionTimestamp" not in pod["metadata"]


def has_no_node(pod):
    """Whether the scheduler says that no node takes the pod."""
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", ()))


def failing(pod):
    """Reasons of the pod's containers that fail now."""
    of_pod = pod["status"]
    for container in of_pod.get("initContainerStatuses", []) + of_pod.get("containerStatuses", []):
        state = container.get("state", {})
        if state.get("waiting", {}).get("reason") in BAD_WAITS:
            yield state["waiting"]["reason"]
        elif state.get("terminated", {}).get("exitCode", 0) != 0:
            yield state["terminated"].get("reason", "Error")
