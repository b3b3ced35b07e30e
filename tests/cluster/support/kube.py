"""kubectl as Python functions, waits, and manifests of the tests."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import api
import yaml

FAKE_IMAGE = "wisp.test/fake-runtime:1"
# Exists if the cluster is tests/cluster/node.
NODE_RUN = Path("/run", os.environ.get("WISP_NODE", "wisp-node"))


# Words of kubectl about a server or kubelet that is away, or too busy, for a moment.
AWAY = (
    *("connection refused", "connection reset", "connection lost", "unexpected EOF", "i/o timeout"),
    *("handshake timeout", "etcdserver:", "(Timeout)", "(ServiceUnavailable)", "(TooManyRequests)"),
    *("the object has been modified", "error dialing backend", "unable to upgrade connection"),
)


def patiently(command, stdin=b"", seconds=api.AWAY_S):
    """Run a command of kubectl's, again for some seconds while what it asks is away; its result."""
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=240)
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        is_away = done.returncode != 0 and any(word in done.stderr for word in AWAY)
        if not is_away or time.monotonic() > deadline:
            return done
        time.sleep(0.5)


def kubectl(*arguments, stdin="", check=True):
    """Run kubectl; its standard output, or with check=False its whole result."""
    done = patiently(["kubectl", *arguments], stdin.encode())
    if check and done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout if check else done


def get(kind, name="", namespace="default"):
    """An object, or the items of a kind, as plain data."""
    if path := api.path_of(kind, name, namespace):
        found = api.read(path)
    else:
        found = json.loads(kubectl("get", kind, *([name] if name else []), "-n", namespace, "-o", "json"))
    return found if name else found["items"]


def is_established(crd):
    """Whether the API server serves a CRD's kind; `kubectl wait` fails on one that has no conditions yet."""
    found = json.loads(kubectl("get", "crd", crd, "-o", "json")).get("status", {}).get("conditions")
    return any((c["type"], c["status"]) == ("Established", "True") for c in found or ())


def model(name, **spec):
    """An InferenceModel's manifest on the CPU, with parts of its spec replaced."""
    base = {"model": {"uri": "file:///srv"}, "gpu": {"count": 0}}
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def fake(**variables):
    """spec.runtime with the variables of the fake runtime."""
    return {
        "env": [{"name": f"FAKE_{name.upper()}", "value": str(value)} for name, value in variables.items()]
    }


def apply(*manifests, namespace="default", check=True):
    return kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(manifests), check=check)


def until(claim, seconds=180.0, every=0.2):
    """Call ``claim`` until it returns something true, and return that.

    By default for longer than a kubelet needs that read an object in vain: its tries are up to 90 s apart.
    A part of a status that is not there yet, and a process that does not listen yet, are no answer.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = claim()
        except (KeyError, IndexError, OSError) as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {claim.__name__}") from error
            found = None
        if found or time.monotonic() > deadline:
            assert found, f"not within {seconds:g} s: {claim.__name__}: {found!r}"
            return found
        time.sleep(every)


def at_rest(read, seconds=2.0):
    """Wait until ``read()`` has returned the same for some seconds, and return that."""
    since, last = time.monotonic(), read()

    def rests():
        nonlocal since, last
        if (now := read()) != last:
            since, last = time.monotonic(), now
        return time.monotonic() - since >= seconds

    until(rests)
    return last


@contextmanager
def moments(kind, namespace):
    """Gather objects of a kind as they are at any moment of the block, however short, by a watch."""
    seen = []
    watch = api.Watch(kind, namespace, lambda _, found: seen.append(found or {}))
    try:
        until(lambda: seen)  # it has begun
        yield seen
    finally:
        watch.end()


def is_going(thing):
    """Whether an object is on its way out."""
    return "deletionTimestamp" in thing.get("metadata", {})


def has_state(*states):
    """A check of an InferenceModel's state, for the objects of :func:`moments`."""
    return lambda found: found.get("status", {}).get("state") in states


def status(name, namespace="default"):
    return get("inferencemodel", name, namespace).get("status", {})


def condition(name, kind, namespace="default"):
    """Status and reason of a condition."""
    found = status(name, namespace).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))


def message(name, kind, namespace="default"):
    found = status(name, namespace).get("conditions", [])
    return next((c["message"] for c in found if c["type"] == kind), "")
