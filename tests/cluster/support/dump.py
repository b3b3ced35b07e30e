"""Dump of a failed test: models, pods, the last events, the last lines of every log of ours."""

import json

from kube import kubectl

LINES = "--tail=12"


def cluster():
    """The dump as one text; parts that cannot be read are named."""
    parts = [["get", "imodel", "-A", "-o", "wide"], ["get", "pods", "-A", "-o", "wide"]]
    parts.append(["get", "events", "-A", "--sort-by=.lastTimestamp"])
    found = [f"$ kubectl {' '.join(part)}\n{_tail(_run(*part))}" for part in parts]
    return "\n".join([*found, *_logs()])


def _logs():
    pods = kubectl("get", "pods", "-A", "-o", "json", check=False)
    for pod in json.loads(pods.stdout)["items"] if pods.returncode == 0 else []:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if namespace.startswith("wisp-"):
            yield f"--- log of {namespace}/{name}\n{_run('logs', name, '-n', namespace, LINES)}"


def _run(*arguments):
    done = kubectl(*arguments, check=False)
    return done.stdout or done.stderr


def _tail(text, most=40):
    head, *lines = text.splitlines() or [""]
    return "\n".join([head, *lines[-most:]])
