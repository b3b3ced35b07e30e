"""A cluster that records the writes of one reconcile, and the parts of an operator around it."""

import asyncio
import copy
import time
from types import SimpleNamespace

from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.config import OperatorConfig
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.observation.caches import Caches, address, of_model
from wisp_operator.cluster.reconcile.fitting import Verdict
from wisp_operator.cluster.reconcile.reconciler import Dependencies, Reconciler
from wisp_operator.core.access.policy import Policy
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.demand import DemandAggregator
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.runtime_state import Load, RuntimeState

ANY_FILE = Policy(file_directories=("/",))
UNKNOWN = Verdict(FitReport("Unknown", "A file:// model is measured by its first pod."))
TOO_LARGE = Verdict(FitReport("DoesNotFit", "Needs 17.1 GiB.", headroom_bytes=-1))


class World:
    """A cluster in which every write is seen at once, and the parts of an operator around it."""

    def __init__(self, spec=None, annotations=None, optional=(), led_for_s=1000.0, policy=ANY_FILE):
        self.indexes = {kind: {} for kind in KINDS}
        self.writes, self.statuses, self.events, self.annotated = [], [], [], {}
        self.verdict, self.version, self.demand = UNKNOWN, 1, DemandAggregator()
        self.polled, self.strangers, self.refused = {}, {}, {}
        self.model = {
            "apiVersion": "wisp.dev/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {
                "name": "chat",
                "namespace": "a",
                "uid": "u1",
                "generation": 1,
                "annotations": annotations or {},
            },
            "spec": {"model": {"uri": "file:///srv"}, "gpu": {"count": 0}, **(spec or {})},
        }
        self.indexes["InferenceModel"]["a/chat"] = [self.model]
        fit_checker = SimpleNamespace(verdict=lambda model, devices: self.verdict, forget=lambda key: None)
        poller = SimpleNamespace(set_pods=lambda key, pods: None, states=lambda key: self.polled)
        caches = Caches()
        caches.attach(self.indexes)
        self.dependencies = Dependencies(
            caches=caches,
            writer=self,
            demand=self.demand,
            fit_checker=fit_checker,
            poller=poller,
            metrics=Metrics(),
            config=OperatorConfig(namespace="wisp", gateway_url="http://gw", policy=policy),
            optional_kinds=optional,
            leader_since=lambda: time.time() - led_for_s,
            tokens=TokenKeys(None),
        )
        self.reconciler = Reconciler(self.dependencies)

    def reconcile(self):
        return asyncio.run(self.reconciler.reconcile("a/chat"))

    def ask(self, waiting=1, running=0, gateway="g", **ready):
        report = {"waiting": waiting, "running": running, "arrivals": 1, "idleSeconds": 0.0, **ready}
        self.demand.record({"gateway": gateway, "models": {"a/chat": report}}, time.time())

    def pod(self, name, ready=True, age_s=60.0, running=0, **container):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age_s))
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": stamp}]
        status = {
            "conditions": conditions,
            "podIP": "10.0.0.7",
            "containerStatuses": [container or {"state": {"running": {"startedAt": stamp}}}],
        }
        metadata = {"name": name, "namespace": "a", "creationTimestamp": stamp}
        metadata["labels"] = {"pod-template-hash": "7c9f"}
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": "chat-7c9f", "controller": True}]
        found = {
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"nodeName": "n", "containers": [{}]},
            "status": status,
        }
        if ready:
            self.polled[name] = RuntimeState(load=Load(running=running))
        self.indexes["Pod"].setdefault("a/chat", []).append(found)
        return found

    @property
    def replicas(self):
        return self.indexes["Deployment"]["a/chat"][0]["spec"]["replicas"]

    @property
    def status(self):
        return self.statuses[-1]

    # the cluster's side
    async def find(self, manifest):
        return self.strangers.get(address(manifest))

    async def apply(self, manifest, over):
        if error := self.refused.get(manifest["kind"]):
            self.writes.append(f"?{manifest['kind']}")
            raise error
        self.version += 1
        live = copy.deepcopy(manifest)
        live["metadata"]["resourceVersion"] = str(self.version)
        self.writes.append(manifest["kind"])
        return self.put(live)

    def put(self, live):
        """Store an object as the indexes have it: by its name, and where that is needed by its model."""
        kind, namespace, name = address(live)
        self.indexes[kind][f"{namespace}/{name}"] = [live]
        if KINDS[kind].is_pruned:
            children = self.indexes[kind].setdefault(of_model("a/chat"), [])
            children[:] = [child for child in children if child["metadata"]["name"] != name] + [live]
        return live

    async def write_status(self, name, namespace, status):
        self.statuses.append(status)
        self.model["status"] = status

    async def emit(self, event):
        self.events.append(event["reason"])

    async def annotate(self, kind, namespace, name, annotations):
        self.annotated[name] = annotations

    async def delete(self, document):
        kind, namespace, name = address(document)
        del self.indexes[kind][f"{namespace}/{name}"]
        children = self.indexes[kind].get(of_model("a/chat"), [])
        children[:] = [child for child in children if child["metadata"]["name"] != name]
        self.writes.append(f"-{kind}")

    async def warnings_about(self, namespace, pod):
        return [{"reason": "FailedMount", "message": "no such directory"}]
