"""Rights of an installed release and its models: no more than they need, all under "restricted"."""

import json

import pytest
import yaml
from kube import apply, get, kubectl, model, status, until
from namespaces import LEVEL, execute, make_namespace, put_weights
from release import CLIENTS, SYSTEM, client_pod
from tiny import write_tiny

NAMESPACE = "wisp-rights"
OPERATOR, GATEWAY = (f"system:serviceaccount:{SYSTEM}:wisp-{name}" for name in ("operator", "gateway"))


@pytest.mark.parametrize(
    ("account", "may"),
    [
        (
            OPERATOR,
            {
                "inferencemodels.wisp.dev": "list watch",
                "inferencemodels.wisp.dev/status": "patch",
                "inferencemodels.wisp.dev/finalizers": "update",
                "deployments.apps": "list watch create patch",
                "services": "list watch create patch delete",
                "persistentvolumeclaims": "list watch create patch",
                "networkpolicies.networking.k8s.io": "list watch create patch",
                "poddisruptionbudgets.policy": "list watch create patch delete",
                "jobs.batch": "list watch create patch delete",
                "podmonitors.monitoring.coreos.com": "list watch create patch delete",
                "inferencepools.inference.networking.k8s.io": "list watch create patch delete",
                "pods": "list watch",
                "nodes": "list watch",
                "events": "list",
                "events.events.k8s.io": "create",
            },
        ),
        (
            GATEWAY,
            {
                "inferencemodels.wisp.dev": "list watch",
                "endpointslices.discovery.k8s.io": "list watch",
            },
        ),
    ],
    ids=["operator", "gateway"],
)
def test_the_rights_of_an_account_are_exactly_these(release, account, may):
    assert rights(account) == {kind: set(verbs.split()) for kind, verbs in may.items()}


def test_in_its_own_namespace_the_operator_also_keeps_its_lease(release):
    more = {kind: verbs for kind, verbs in rights(OPERATOR, SYSTEM).items() if kind not in rights(OPERATOR)}
    assert more == {"leases.coordination.k8s.io": {"create", "get", "update"}}
    assert can(OPERATOR, "update", "lease/wisp-operator", SYSTEM)
    assert not can(OPERATOR, "update", "lease/another", SYSTEM)


@pytest.mark.parametrize(
    ("verb", "thing"),  # as the authorizer decides, of what the lists above leave out
    [
        *(("get", "secrets"), ("list", "secrets"), ("create", "pods"), ("create", "pods/exec")),
        *(("create", "serviceaccounts/token"), ("patch", "inferencemodels"), ("escalate", "clusterroles")),
    ],
)
def test_neither_account_may(release, verb, thing):
    assert not can(OPERATOR, verb, thing, NAMESPACE)
    assert not can(GATEWAY, verb, thing, NAMESPACE)  # Secrets neither, but those of gateway.modelSecrets


def can(account, verb, thing, namespace):
    kind, _, subresource = thing.partition("/")
    if kind == "lease":
        kind, subresource = thing, ""
    extra = ["--subresource", subresource] if subresource else []
    asked = ["auth", "can-i", verb, kind, *extra, "-n", namespace, "--as", account]
    return kubectl(*asked, check=False).stdout.strip() == "yes"


def rights(account, namespace="default"):
    """{resource: verbs}, without what every account may."""
    found, everybody = review(account, namespace), review("system:serviceaccount:default:nobody", namespace)
    return {kind: verbs for kind, verbs in found.items() if kind not in everybody}


def review(account, namespace):
    """All that an account may do, as the API server itself reports it."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    command = ("create", "--validate=false", "-f", "-", "-o", "json", "--as", account)
    answer = kubectl(*command, stdin=yaml.safe_dump(review))
    found = {}
    for rule in json.loads(answer)["status"]["resourceRules"]:
        for kind in (
            f"{name}.{group}" if group else name for group in rule["apiGroups"] for name in rule["resources"]
        ):
            name, _, subresource = kind.partition("/")
            subresource, _, group = subresource.partition(".")
            kind = f"{name}.{group}/{subresource}" if subresource and group else kind
            found.setdefault(kind, set()).update(rule["verbs"])
    return found


@pytest.fixture(scope="module")
def runtime_pod(clients, tmp_path_factory):
    """The pod of a model that answers."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(folder)
    make_namespace(NAMESPACE)
    put_weights(NAMESPACE, tiny=folder)
    apply(model("chat", model={"uri": "pvc://weights/tiny"}, replicas=1), namespace=NAMESPACE)
    until(lambda: status("chat", NAMESPACE).get("state") == "Ready")
    return next(pod for pod in get("pods", namespace=NAMESPACE) if pod["metadata"]["name"] != "fill")


LOOK = """
import json, os, socket, ssl, urllib.error, urllib.request
found = {"uid": os.getuid(), "token": os.path.exists("/var/run/secrets/kubernetes.io")}
try:
    open("/here", "w")
    found["root"] = "writable"
except OSError as error:
    found["root"] = error.strerror
status = open("/proc/self/status").read().splitlines()
found["capabilities"] = next(line.split()[1] for line in status if line.startswith("CapEff"))
found["shells"] = [path for path in ("/bin/sh", "/bin/bash", "/usr/bin/apt-get") if os.path.exists(path)]
context = ssl._create_unverified_context()
url = "https://kubernetes.default.svc/api/v1/namespaces/default/pods"
try:
    urllib.request.urlopen(url, context=context, timeout=5)
    found["api"] = 200
except urllib.error.HTTPError as error:
    found["api"] = error.code
print(json.dumps(found))
"""


def test_a_runtime_pod_has_no_token_and_nothing_to_gain(runtime_pod):
    volumes = runtime_pod["spec"]["volumes"]
    assert not [volume for volume in volumes if "projected" in volume or "secret" in volume]
    found = json.loads(execute(NAMESPACE, runtime_pod["metadata"]["name"], "python3", "-c", LOOK))
    assert found == {
        "uid": 65532,
        "token": False,
        "root": "Read-only file system",
        "capabilities": "0" * 16,
        "shells": [],
        "api": 403,  # as whoever comes without a name
    }


@pytest.mark.parametrize("namespace", [SYSTEM, CLIENTS, NAMESPACE])
def test_the_restricted_level_is_enforced_where_all_this_runs(runtime_pod, namespace):
    labels = json.loads(kubectl("get", "namespace", namespace, "-o", "json"))["metadata"]["labels"]
    assert labels[LEVEL] == "restricted"
    rooted = client_pod("rooted", ["true"])
    rooted["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    manifest = yaml.safe_dump(rooted)
    refused = kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=manifest, check=False)
    assert "violates PodSecurity" in refused.stderr
    assert get("pods", namespace=namespace)
