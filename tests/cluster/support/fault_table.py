"""Faults as a table: each is a function with what may happen to requests and what status must say.

    @fault("SIGKILL of the runtime", failure="Killed")
    def runtime_is_killed(scene): ...

:func:`run` puts a model under an open loop of 30 requests a second, half of them streams, each on a
connection of its own, calls the function, and holds the counts and the status against the row. Of every
row: no request is lost, none gets 404 for a model that exists, and no status contradicts a pod for longer
than 5 s.
"""

import http.client
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from counts import COLUMNS
from kube import NODE_RUN, apply, get, kubectl, model, until
from namespaces import make_namespace, put_weights
from release import SYSTEM
from steady_load import SteadyLoad
from tiny import write_tiny
from truth import Truth, is_ready

NAMESPACE = "wisp-faults"
RATE = 30
TINY = {"uri": "pvc://weights/tiny"}
# Longer than any fault, on a machine that does much else: nothing is refused for want of time or of a place.
HOLD = {"maxWait": "160s", "queueLimit": 10000}
WARM = {"scaling": {"min": 1, "max": 1}, "runtime": {"maxContext": 512}, "coldStart": HOLD}
ASLEEP = {"runtime": {"maxContext": 512}, "coldStart": HOLD}

needs_our_node = pytest.mark.skipif(not NODE_RUN.exists(), reason="ends processes of tests/cluster/node")


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        name: row of the table.
        inject: the fault; returns when it is over.
        spec: spec of the model under load, over TINY.
        names: names that the load asks for, in turn; ``{}`` is the model's own.
        is_ready_first: the load begins when the model is ready.
        rate: requests a second.
        errors: ``STATUS code`` or ``event code`` of errors that requests may get.
        refusals: the same of answers with Retry-After.
        may_cut: connections may end within an answer: those of a gateway that was killed.
        may_be_stale: nobody can write the status meanwhile.
        is_apart: it disturbs nothing but its own model, so rows like it run beside each other.
        says: (type, status, reason) of conditions that the model must have had.
        failure: reason of ``status.lastFailure`` that it must have had.
        event: reason of an Event that must be there.
        check: called with the scene and the load's report, for what only this row must hold.
    """

    name: str
    inject: Callable
    spec: dict = field(default_factory=lambda: WARM)
    names: tuple = ("{}",)
    is_ready_first: bool = True
    rate: int = RATE
    errors: tuple = ()
    refusals: tuple = ()
    may_cut: bool = False
    may_be_stale: bool = False
    is_apart: bool = False
    says: tuple = ()
    failure: str = ""
    event: str = ""
    check: Callable = lambda *_: None

    def __str__(self):
        """The name as that of an InferenceModel and of a test."""
        return re.sub(r"[^a-z0-9]+", "-", f"f-{self.name.lower()}")[:50].strip("-")


def table():
    """A list of faults, and the decorator that adds a function to it as a row."""
    rows = []

    def fault(name, **row):
        def add(inject):
            rows.append(Fault(name, inject, **row))
            return inject

        return add

    return rows, fault


class Scene:
    """A model under load, for the function of one fault.

    Attributes:
        name: name of the InferenceModel; ``key`` is NAMESPACE/NAME.
        url: the gateway's, by address: a lookup is not part of a request.
        release: the installed chart.
        began: Unix seconds at which the fault began.
        marks: Unix seconds of what a fault's check wants to know.
    """

    def __init__(self, name, world, namespace=NAMESPACE):
        self.name, self.world, self.namespace = name, world, namespace
        self.key, self.url, self.release = f"{namespace}/{name}", world.url, world.release
        self.truth, self.began, self.load = world.truth(namespace), time.time(), None
        self.threads, self.marks = ThreadPoolExecutor(), {}

    def apply(self, name="", **spec):
        """Apply this model, or another one, with a spec."""
        weights = {**TINY, **spec.pop("model", {})}
        apply(model(name or self.name, model=weights, **spec), namespace=self.namespace)

    def patch(self, **spec):
        """Merge into the spec."""
        change = json.dumps({"spec": spec})
        kubectl("patch", "imodel", self.name, "-n", self.namespace, "--type=merge", "-p", change)

    def model(self, name=""):
        return self.truth.model(name or self.name)

    def status(self, name=""):
        return self.model(name).get("status", {})

    def condition(self, kind, name=""):
        """Status and reason of a condition."""
        found = self.status(name).get("conditions", [])
        return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))

    def pods(self, name=""):
        """Pods that are not on their way out."""
        return [
            pod for pod in self.truth.pods(name or self.name) if "deletionTimestamp" not in pod["metadata"]
        ]

    def pod(self, name=""):
        """The only pod that is ready."""
        return until(lambda: [pod for pod in self.pods(name) if is_ready(pod)], seconds=60)[0]

    def is_serving(self, name=""):
        """Whether the newest spec is what all pods run, and they are ready."""
        found, pods = self.model(name), self.pods(name)
        is_seen = self.status(name).get("observedGeneration") == found.get("metadata", {}).get("generation")
        return is_seen and self.condition("Ready", name) == ("True", "Serving") and all(map(is_ready, pods))

    def serves(self, name="", seconds=90):
        until(lambda: self.is_serving(name), seconds=seconds, every=0.05)

    def is_replaced(self, before):
        """Whether pods serve, and none of them is among ``before``."""
        gone = {pod["metadata"]["uid"] for pod in before}
        now = {pod["metadata"]["uid"] for pod in self.pods()}
        return bool(now) and not now & gone and self.is_serving()

    def asleep(self, name, **spec):
        """Apply a model that sleeps."""
        self.apply(name, **{**ASLEEP, **spec})
        until(lambda: self.status(name).get("state") == "Asleep", seconds=60)
        return name

    def restarts(self):
        return sum(
            c["restartCount"] for pod in self.pods() for c in pod["status"].get("containerStatuses", [])
        )

    def ask(self, name="", **more):
        """Ask a model of the scene, as NAMESPACE/NAME."""
        return self.ask_by(f"{self.namespace}/{name or self.name}", **more)

    def ask_by(self, model, timeout=120, **more):
        """One request that is not streamed: (status, headers, document, seconds)."""
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "model": model, **more}
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=timeout)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return answer.status, dict(answer.getheaders()), document, time.monotonic() - began

    def asking(self, name="", **more):
        """The same in a thread: a future."""
        return self.threads.submit(self.ask, name, **more)

    def events(self, name=""):
        """Count of the events of a model, by reason."""
        counts = {}
        for event in get("events", namespace=self.namespace):
            of = event.get("involvedObject", {})
            if (of.get("kind"), of.get("name")) == ("InferenceModel", name or self.name):
                times = event.get("series", {}).get("count") or event.get("count") or 1
                counts[event["reason"]] = counts.get(event["reason"], 0) + times
        return counts

    def forget(self, *names):
        """Delete models."""
        kubectl("delete", "imodel", *names, "-n", self.namespace, "--ignore-not-found", "--wait=false")


class World:
    """The installed release, the namespaces with weights, and who watches them."""

    def __init__(self, release, folder):
        self.release, self.folder, self._truths = release, folder, {}
        self.weights = {"tiny": folder / "tiny", "truncated": folder / "truncated"}
        for weights in self.weights.values():
            write_tiny(weights)
        cut = self.weights["truncated"] / "model.safetensors"
        cut.write_bytes(cut.read_bytes()[:-1000])
        self.url = f"http://{get('service', 'wisp-gateway', SYSTEM)['spec']['clusterIP']}"
        self.namespace(NAMESPACE)

    def namespace(self, name):
        """A new namespace with the weights."""
        make_namespace(name)
        put_weights(name, **self.weights)
        return name

    def truth(self, namespace):
        if namespace not in self._truths:
            self._truths[namespace] = Truth(namespace)
        return self._truths[namespace]

    def end(self):
        for truth in self._truths.values():
            truth.end()


def run(fault, scene, record):
    """Put the model under load, inject the fault, and hold what was counted against the row."""
    scene.apply(**fault.spec)
    if fault.is_ready_first:
        scene.serves()
        until(lambda: scene.ask()[0] == 200)
    names = ",".join(name.format(scene.key) for name in fault.names)
    scene.load = SteadyLoad(scene.world.folder, scene.url, names, fault.rate)
    try:
        time.sleep(2)  # some requests before
        scene.began = time.time()
        fault.inject(scene)
        over = time.time()
        scene.serves()
        serves = time.time()
        time.sleep(2)  # and after
        found = scene.load.report()
    finally:
        scene.load.kill()
        scene.forget(scene.name)
    row = _counted(fault, scene, found, over, serves)
    kept = record("fault", **row, held=False)
    print(json.dumps(row), *found["troubles"], sep="\n")
    _hold(fault, scene, found, row)
    kept["held"] = True


def _counted(fault, scene, found, over, serves):
    """The row of the record."""
    labels = Counter()
    for seen in found["labels"].values():
        labels.update({label: times["count"] for label, times in seen.items()})
    last = [times["last"] for seen in found["labels"].values() for times in seen.values()]
    wrong = [u.until - u.since for u in scene.truth.untruths(scene.name, scene.began, longer_than=0)]
    return {
        "fault": fault.name,
        "rate": fault.rate,
        **{key: found[key] for key in COLUMNS},
        "labels": dict(labels),
        "fault_s": round(over - scene.began, 1),
        "serves_s": round(serves - scene.began, 1),
        "last_trouble_s": round(max(last) - scene.began, 1) if last else None,
        "status_wrong_s": round(max(wrong, default=0), 1),
        "first_token_p99_s": found["firstToken"]["p99"],
        "longest_s": found["seconds"]["most"],
    }


def _hold(fault, scene, found, row):
    """Hold what was counted against the row of the table."""
    troubles = json.dumps(row) + "\n" + "\n".join(found["troubles"])
    allowed = {*fault.errors, *fault.refusals}
    unexpected = {label for label in row["labels"] if label not in allowed and "with" not in label}
    assert found["lost"] == 0, troubles
    assert found["cut"] == 0 or fault.may_cut, troubles
    assert not unexpected, troubles
    assert sum(found[key] for key in ("answered", "retried", "refused", "error", "cut")) == found["sent"]
    assert found["sent"] > 0.8 * fault.rate * row["fault_s"]
    untruths = scene.truth.untruths(scene.name, scene.began)
    assert fault.may_be_stale or not untruths, [f"{u.text}, {u.until - u.since:.1f} s" for u in untruths]
    said, failures = scene.truth.said(scene.name, scene.began)
    assert not set(fault.says) - said, said
    assert not fault.failure or fault.failure in failures, failures
    assert not fault.event or fault.event in scene.events(), scene.events()
    fault.check(scene, found)
