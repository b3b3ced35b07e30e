"""Namespaces of the chart's tests, all under Pod Security "restricted", and the claims with weights."""

import io
import tarfile
import time

import yaml
from kube import NODE_RUN, get, kubectl, patiently, until

LEVEL = "pod-security.kubernetes.io/enforce"
CLAIM = "weights"


def make_namespace(name, level="restricted"):
    """Make a new namespace in place of any of that name; it enforces Pod Security ``level``."""
    remove_namespace(name)
    labels = {LEVEL: level}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    given = ["serviceaccount/default", "configmap/kube-root-ca.crt"]
    until(lambda: kubectl("get", *given, "-n", name, check=False).returncode == 0)
    return name


def remove_namespace(*names):
    """Delete namespaces, all at once, and their volumes; wait until they are gone."""
    kubectl("delete", "namespace", *names, "--ignore-not-found", "--wait=false")
    for name in names:
        until(lambda name=name: is_absent("namespace", name), seconds=240)
    volumes = [f"{name}-{CLAIM}" for name in names]
    kubectl("delete", "persistentvolume", *volumes, "--ignore-not-found")


def is_absent(kind, name, namespace="default"):
    """Whether the API server says that there is no such object."""
    return not kubectl("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "name").strip()


def operator_image():
    """The image that the installed operator runs, which has a Python for helpers of the tests too."""
    return get("deployment", "wisp-operator", "wisp-system")["spec"]["template"]["spec"]["containers"][0][
        "image"
    ]


def restricted_pod(name, command, *, volumes=(), mounts=(), labels=None, port=None):
    """A pod of the operator's image that Pod Security "restricted" lets in; it may write to /tmp."""
    container = {
        "name": "main",
        "image": operator_image(),
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }
    if port:
        probe = {"tcpSocket": {"port": port}, "periodSeconds": 1}
        container |= {"ports": [{"containerPort": port}], "readinessProbe": probe}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
        },
    }


def run_pod(namespace, pod, seconds=180):
    """Create ``pod`` and wait until it is ready."""
    kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(pod))
    kubectl(
        "wait",
        "--for=condition=Ready",
        f"pod/{pod['metadata']['name']}",
        "-n",
        namespace,
        f"--timeout={seconds}s",
    )


def execute(namespace, pod, *command, stdin=b"", check=True):
    """Run a command in a pod; return its output as text. With check=False the pod may have ended."""
    into = ["kubectl", "exec", "-i", "-n", namespace, pod, "--", *command]
    done = patiently(into, stdin) if check else patiently(into, stdin, seconds=0)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)[:200]} in {namespace}/{pod}: {done.stderr}")
    return done.stdout


def put_weights(namespace, **folders):
    """A claim called ``weights`` in ``namespace`` with copies of ``folders``, filled by a pod."""
    size = sum(file.stat().st_size for folder in folders.values() for file in folder.rglob("*"))
    for manifest in _claim(namespace, f"{64 + 2 * size // 2**20}Mi"):
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    claim = {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM}}
    rest = ["python3", "-c", "import signal; signal.pause()"]
    mounts = [{"name": "weights", "mountPath": "/weights"}]
    run_pod(namespace, restricted_pod("fill", rest, volumes=[claim], mounts=mounts))
    unpack = "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('/weights')"
    execute(namespace, "fill", "python3", "-c", unpack, stdin=_packed(folders))
    kubectl("delete", "pod", "fill", "-n", namespace, "--wait=false")
    return CLAIM


def _packed(folders):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, folder in folders.items():
            archive.add(folder, arcname=name)
    return buffer.getvalue()


def _claim(namespace, size):
    """The claim; where nothing provides volumes by itself, as on the test node, also a volume for it."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    metadata = {"name": CLAIM, "namespace": namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    if get("storageclass"):
        return [claim]
    spec |= {"storageClassName": "", "volumeName": f"{namespace}-{CLAIM}"}
    return [_volume(namespace, size), claim]


def _volume(namespace, size):
    assert NODE_RUN.exists(), "the cluster has no StorageClass, so there is nowhere to put weights"
    folder = NODE_RUN / "volumes" / f"{namespace}-{time.time_ns()}"
    folder.mkdir(parents=True)
    node = get("nodes")[0]["metadata"]["name"]
    here = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{CLAIM}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}},
        },
    }
