"""The chart on a real cluster: rights of a release, its upgrade, and its leftovers.

Needs the images of ``tests/cluster/images.sh`` on the node. The operator of a release serves the whole
cluster: on one that is shared, ``WISP_HELM_FLAGS='--post-renderer …'`` can take its rights away.
"""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from kube import NODE_RUN, kubectl, until
from namespaces import remove_namespace
from release import KEEP, NAME, SYSTEM, settled
from release import helm as release_status

CHART = Path(__file__).parents[3] / "charts/wisp"
SPACE = "wisp-chart-test"
RELEASE = "chart-wisp"  # not "wisp", since roles are cluster-wide and the node may be shared
ACCOUNTS = {name: f"system:serviceaccount:{SPACE}:{RELEASE}-{name}" for name in ("operator", "gateway")}
# The CRD was applied by the fixture of this folder, so the release leaves it to others.
SETTINGS = {
    "crd.install": "false",
    "images.registry": "wisp.test",
    "images.pullPolicy": "Never",
    "images.operator.repository": "wisp-operator",
    "images.operator.tag": "dev",
    "images.runtime.repository": "wisp-runtime",
    "images.runtime.tag": "dev",
}


def helm(command, *flags, **settings):
    """Run helm on the release; settings with __ for a dot."""
    given = {**SETTINGS, **{key.replace("__", "."): value for key, value in settings.items()}}
    values = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    chart = (
        []
        if command == "uninstall"
        else [str(CHART), *values, *os.environ.get("WISP_HELM_FLAGS", "").split()]
    )
    full = ["helm", command, RELEASE, *chart, "--namespace", SPACE, *flags]
    done = subprocess.run(full, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def remains():
    """Names of what is in the namespace beyond the usual, and of the release elsewhere."""
    kinds = kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    kinds = ",".join(kind for kind in kinds if not kind.startswith("events"))
    own = kubectl("get", kinds, "-n", SPACE, "-o", "name").split()
    wide = kubectl("get", "clusterrole,clusterrolebinding,priorityclass,crd", "-o", "name").split()
    given = ("configmap/kube-root-ca.crt", "serviceaccount/default")
    return sorted(
        [name for name in own if name not in given]
        + [name for name in wide if RELEASE in name or "wisp.dev" in name]
    )


@pytest.fixture
def space():
    """The release's namespace, where Pod Security "restricted" is enforced."""
    if KEEP and "deployed" in release_status("status", NAME, "--namespace", SYSTEM, check=False):
        pytest.skip("KEEP=1 kept a release, and a second one is refused")
    remove_namespace(SPACE)
    kubectl("create", "namespace", SPACE)
    kubectl("label", "namespace", SPACE, "pod-security.kubernetes.io/enforce=restricted")
    yield
    subprocess.run(["helm", "uninstall", RELEASE, "--namespace", SPACE], capture_output=True, timeout=240)
    remove_namespace(SPACE)


MAY = {
    "operator": [
        *("list inferencemodels", "patch inferencemodels/status", "create deployments.apps"),
        *("delete jobs.batch", "create events.events.k8s.io", "list nodes"),
    ],
    "gateway": ["watch inferencemodels", "list endpointslices.discovery.k8s.io"],
}
# Values that open what is closed, and what they open.
OPENED = {
    "operator__markIdlePods": ("operator", "patch pods"),
    "gateway__readModelSecrets": ("gateway", "get secrets"),
}
MAY_NOT = {
    "operator": [
        *(
            "patch inferencemodels",
            "delete inferencemodels",
            "create inferencemodels",
            "update inferencemodels/status",
        ),
        *("get secrets", "list secrets", "get configmaps", "create pods", "delete pods", "create pods/exec"),
        *("delete deployments.apps", "delete persistentvolumeclaims", "patch nodes"),
        *("create clusterrolebindings.rbac.authorization.k8s.io", "update leases.coordination.k8s.io"),
    ],
    "gateway": [
        *(
            "list secrets",
            "watch secrets",
            "get pods",
            "list nodes",
            "patch inferencemodels",
            "delete inferencemodels",
        ),
        *("patch inferencemodels/status", "create events.events.k8s.io", "get configmaps", "create pods"),
    ],
}


def can(account, question):
    verb, resource = question.split()
    kind, _, subresource = resource.partition("/")
    extra = ["--subresource", subresource] if subresource else []
    asked = ["auth", "can-i", verb, kind, *extra, "--all-namespaces", "--as", ACCOUNTS[account]]
    return kubectl(*asked, check=False).stdout.strip() == "yes"


def test_rights_are_those_that_are_needed_and_no_others(space, monkeypatch):
    monkeypatch.delenv("WISP_HELM_FLAGS", raising=False)
    helm("install", operator__replicas=0, gateway__replicas=0)
    until(lambda: all(can(account, question) for account in ACCOUNTS for question in MAY[account]))
    for account in ACCOUNTS:
        refused = {question: can(account, question) for question in MAY_NOT[account]}
        assert refused == dict.fromkeys(MAY_NOT[account], False)
    assert not any(can(*opened) for opened in OPENED.values())
    helm("upgrade", operator__replicas=0, gateway__replicas=0, **dict.fromkeys(OPENED, "true"))
    until(lambda: all(can(*opened) for opened in OPENED.values()))


def models(key=""):
    """Ask the gateway's Service for its models: status and document."""
    address = kubectl("get", "service", f"{RELEASE}-gateway", "-n", SPACE, "-o", "jsonpath={.spec.clusterIP}")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{address}/v1/models", headers=headers), timeout=5
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def leader():
    return kubectl(
        "get", "lease", f"{RELEASE}-operator", "-n", SPACE, "-o", "jsonpath={.spec.holderIdentity}"
    )


def test_a_release_answers_upgrades_by_rolling_and_leaves_nothing_but_the_crd(space):
    before = remains()
    notes = helm("install", "--wait", "--timeout", "240s")
    assert len(re.findall(r"^  kubectl ", notes, re.M)) == 3
    assert "leaves two things behind: the Secret chart-wisp-tokens, and the CRD" in notes
    first = until(leader)
    until(lambda: models()[0] == 200)

    kubectl("create", "secret", "generic", "door", "-n", SPACE, "--from-literal=keys=me:sesame")
    changes = {
        "gateway__apiKeysSecret": "door",
        "operator__logLevel": "warning",
        "priorityClass__create": "true",
    }
    helm("upgrade", "--wait", "--timeout", "240s", **changes)
    until(lambda: leader() not in ("", first))
    settled("gateway", SPACE, RELEASE)
    until(lambda: models()[0] == 401)  # kube-proxy may still lead to a gateway that is gone
    until(lambda: models("sesame")[0] == 200)

    said = helm("uninstall", "--wait")
    assert "uninstalled" in said
    kubectl("delete", "secret", "door", f"{RELEASE}-tokens", "-n", SPACE)
    until(lambda: remains() == before)
    time.sleep(3)  # a Lease written late by an operator on its way out would be here now
    assert remains() == before


def test_the_node_cache_belongs_to_the_user_of_the_models(space, tmp_path):
    kubectl("label", "--overwrite", "namespace", SPACE, "pod-security.kubernetes.io/enforce=privileged")
    folder = tmp_path / "cache"
    prepared = {"nodeCache__prepare": "true", "nodeCache__path": folder, "runtime__userId": 4242}
    helm("install", "--wait", "--timeout", "240s", operator__replicas=0, gateway__replicas=0, **prepared)
    if not NODE_RUN.exists():
        pytest.skip("the directory is on a node that is not this machine")
    # Helm waits for all pods of a DaemonSet but one.
    until(lambda: folder.exists() and (folder.stat().st_uid, folder.stat().st_gid) == (4242, 4242))
