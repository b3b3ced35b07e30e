"""The API server over HTTP as the kubeconfig's user: reads and watches without a process each.

Half the time of a test that polls went into starting kubectl. Kinds that are not in ``PATHS``, and
kubeconfigs with neither a token nor a client certificate in them, are left to kubectl.
"""

import base64
import json
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from functools import cache

PATHS = {
    **dict.fromkeys(
        ("inferencemodel", "inferencemodels", "imodel"), "apis/wisp.dev/v1alpha1/*/inferencemodels"
    ),
    **dict.fromkeys(("pod", "pods"), "api/v1/*/pods"),
    **dict.fromkeys(("event", "events"), "api/v1/*/events"),
    **dict.fromkeys(("service", "services"), "api/v1/*/services"),
    **dict.fromkeys(("secret", "secrets"), "api/v1/*/secrets"),
    **dict.fromkeys(("node", "nodes"), "api/v1/nodes"),
    **dict.fromkeys(("deployment", "deployments"), "apis/apps/v1/*/deployments"),
    **dict.fromkeys(("replicaset", "replicasets"), "apis/apps/v1/*/replicasets"),
    **dict.fromkeys(("lease", "leases"), "apis/coordination.k8s.io/v1/*/leases"),
    **dict.fromkeys(("endpointslice", "endpointslices"), "apis/discovery.k8s.io/v1/*/endpointslices"),
}


# A server that restarts, or is too busy, may be away for so long.
AWAY_S = 20.0


@cache
def server():
    """Address of the API server, the headers of a request, and its TLS context; None for kubectl's turn."""
    view = ["kubectl", "config", "view", "--minify", "--raw", "--flatten", "-o", "json"]
    found = json.loads(subprocess.run(view, check=True, capture_output=True, timeout=30).stdout)
    cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
    context = ssl.create_default_context()
    if authority := cluster.get("certificate-authority-data"):
        context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
            pair.write(base64.b64decode(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    elif "token" not in user:
        return None
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return cluster["server"], headers, context


def path_of(kind, name="", namespace="default"):
    """Path of an object or of the objects of a kind; empty if kubectl must find it."""
    if kind not in PATHS or server() is None:
        return ""
    path = PATHS[kind].replace("*", f"namespaces/{namespace}")
    return f"/{path}/{name}" if name else f"/{path}"


def read(path, timeout=30):
    """One object or list, tried again while the server is away; raise AssertionError as kubectl does."""
    deadline = time.monotonic() + AWAY_S
    while True:
        try:
            with _open(path, timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            is_over = error.code < 500 and error.code != 429
            said, cause = f"{error.code} {error.read().decode()[:300]}", error
        except (OSError, ValueError) as error:
            is_over, said, cause = False, str(error), error
        if is_over or time.monotonic() > deadline:
            raise AssertionError(f"GET {path}: {said}") from cause
        time.sleep(0.2)


def refusal(kind, manifest, namespace="default"):
    """What the API server says to kubectl about a new object of ``kind``; empty if it takes it."""
    path, body = path_of(kind, namespace=namespace), json.dumps(manifest).encode()
    if not path:
        create = ["kubectl", "create", "-n", namespace, "-f", "-"]
        return subprocess.run(create, input=body, capture_output=True, timeout=60).stderr.decode()
    try:
        with _open(f"{path}?fieldValidation=Strict", 60, body):
            return ""
    except urllib.error.HTTPError as error:
        return json.load(error)["message"]


def _open(path, timeout, body=None):
    address, headers, context = server()
    if body is not None:
        headers = {**headers, "Content-Type": "application/json"}
    request = urllib.request.Request(address + path, body, headers)
    return urllib.request.urlopen(request, timeout=timeout, context=context)


class Watch:
    """Every object of a kind in a namespace, kept by a thread.

    A watch that breaks begins anew with all objects, so what was deleted meanwhile is forgotten then.
    """

    def __init__(self, kind, namespace, on_change):
        """``on_change(kind, object or None for a new beginning)`` is called after each change."""
        self.kind, self.objects, self.on_change = kind, {}, on_change
        self._path, self._is_over = path_of(kind, namespace=namespace), False
        self._list = ["kubectl", "get", kind, "-n", namespace, "-o", "json"]
        threading.Thread(target=self._run if self._path else self._poll, daemon=True).start()

    def end(self):
        """Stop at the next break or change."""
        self._is_over = True

    def _run(self):
        while not self._is_over:
            try:
                with _open(f"{self._path}?watch=1&timeoutSeconds=3000", timeout=120) as lines:
                    self.objects = {}
                    self.on_change(self.kind, None)
                    self._follow(lines)
            except (OSError, ValueError):
                time.sleep(0.2)

    def _poll(self):
        """In place of a watch where kubectl must ask."""
        self.on_change(self.kind, None)
        while not self._is_over:
            done = subprocess.run(self._list, capture_output=True, timeout=60)
            found = json.loads(done.stdout)["items"] if done.returncode == 0 else []
            self.objects = {thing["metadata"]["name"]: thing for thing in found}
            for thing in found:
                self.on_change(self.kind, thing)
            time.sleep(0.1)

    def _follow(self, lines):
        for line in lines:
            event = json.loads(line)
            found = event["object"]
            if event["type"] == "ERROR" or self._is_over:
                return
            objects = dict(self.objects)  # readers of other threads keep theirs
            if event["type"] == "DELETED":
                objects.pop(found["metadata"]["name"], None)
            else:
                objects[found["metadata"]["name"]] = found
            self.objects = objects
            self.on_change(self.kind, found)
