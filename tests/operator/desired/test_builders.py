"""Builders of cluster objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from wisp_operator import api
from wisp_operator.desired.cache_job import cache_jobs
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.labels import selector_text
from wisp_operator.desired.service import service
from wisp_operator.desired.settings import BuildSettings

SETTINGS = BuildSettings(image="registry.local/wisp-runtime:test", node_cache_dir="/mnt/cache")


def model(uri: str = "hf://Qwen/Qwen3-0.6B", secret: str = "", uid: str = "", **spec: Any):
    source = {"uri": uri, **({"secretRef": {"name": secret}} if secret else {})}
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat", "namespace": "team", "uid": uid},
        "spec": {"model": source, **spec},
    }
    return api.parse(document)


MODELS = [
    model(),
    model(secret="hf", runtime={"env": [{"name": "A", "value": "1"}]}),
    model("file:///srv/m", gpu={"count": 0}),
    model("pvc://models/a/b"),
    model("oci://ghcr.io/acme/q:1", cache={"type": "Image"}),
    model("s3://bucket/q", secret="s3", cache={"type": "PVC"}, uid="u-1"),
    model(gpu={"product": ["NVIDIA-L4"], "memory": "22Gi", "tolerations": [{"operator": "Exists"}]}),
]


def pod(found: api.InferenceModel, settings: BuildSettings = SETTINGS) -> dict[str, Any]:
    template: dict[str, Any] = deployment(found, 1, settings)["spec"]["template"]
    return template["spec"]


def container(found: api.InferenceModel, settings: BuildSettings = SETTINGS) -> dict[str, Any]:
    only: dict[str, Any] = pod(found, settings)["containers"][0]
    return only


def values(node: Any) -> Iterator[Any]:
    yield node
    below = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    for value in below:
        yield from values(value)


@pytest.mark.parametrize("found", MODELS)
def test_a_manifest_has_no_nulls_and_only_json(found):
    for manifest in (deployment(found, 2, SETTINGS), service(found)):
        for value in values(manifest):
            assert type(value) in (dict, list, str, int, bool)


@pytest.mark.parametrize("found", MODELS)
def test_a_pod_keeps_to_pod_security_restricted_except_for_host_paths(found):
    spec = pod(found)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(found)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
    needs_host = found.spec.model.scheme == "file" or (
        found.spec.model.scheme in ("hf", "s3") and found.spec.cache.type == "NodeLocal"
    )
    assert ("hostPath" in kinds) == needs_host
    assert kinds <= {"hostPath", "emptyDir", "persistentVolumeClaim", "image"}


@pytest.mark.parametrize("found", MODELS)
def test_every_mount_has_its_volume_and_the_root_may_stay_read_only(found):
    mounts = container(found)["volumeMounts"]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod(found)["volumes"]}
    writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    assert writable == {"/cache", "/tmp"}


@pytest.mark.parametrize(
    ("found", "volume", "mount"),
    [
        (
            model("file:///srv/m"),
            {"name": "model", "hostPath": {"path": "/srv/m", "type": "Directory"}},
            {"name": "model", "mountPath": "/models/chat", "readOnly": True},
        ),
        (
            model("file:///srv/m/x-Q4_K_M.gguf"),
            {"name": "model", "hostPath": {"path": "/srv/m/x-Q4_K_M.gguf", "type": "File"}},
            {"name": "model", "mountPath": "/models/chat/x-Q4_K_M.gguf", "readOnly": True},
        ),
        (
            model("pvc://models/a/x.gguf"),
            {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
            {
                "name": "model",
                "mountPath": "/models/chat/x.gguf",
                "readOnly": True,
                "subPath": "a/x.gguf",
            },
        ),
        (
            model("pvc://models"),
            {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
            {"name": "model", "mountPath": "/models/chat", "readOnly": True},
        ),
        (
            model("pvc://models/a/b/"),
            {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
            {"name": "model", "mountPath": "/models/chat", "readOnly": True, "subPath": "a/b"},
        ),
        (
            model("oci://ghcr.io/acme/q:1"),
            {"name": "model", "image": {"reference": "ghcr.io/acme/q:1", "pullPolicy": "IfNotPresent"}},
            {"name": "model", "mountPath": "/models/chat", "readOnly": True},
        ),
        (
            model(),
            {"name": "cache", "hostPath": {"path": "/mnt/cache", "type": "DirectoryOrCreate"}},
            {"name": "cache", "mountPath": "/cache"},
        ),
        (
            model(cache={"type": "PVC"}),
            {"name": "cache", "persistentVolumeClaim": {"claimName": "chat-cache"}},
            {"name": "cache", "mountPath": "/cache"},
        ),
        (
            model("s3://bucket/q", cache={"type": "None"}),
            {"name": "cache", "emptyDir": {}},
            {"name": "cache", "mountPath": "/cache"},
        ),
    ],
)
def test_the_weights_are_where_the_uri_and_the_cache_say(found, volume, mount):
    assert volume in pod(found)["volumes"]
    assert mount in container(found)["volumeMounts"]


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ({}, {"nvidia.com/gpu": "1"}),
        ({"resourceName": "nvidia.com/mig-1g.10gb"}, {"nvidia.com/mig-1g.10gb": "1"}),
        ({"count": 0}, None),
    ],
)
def test_a_pod_asks_for_its_gpu_and_nothing_on_the_cpu(gpu, limits):
    resources = container(model(gpu=gpu))["resources"]
    assert resources.get("limits") == limits
    assert {"cpu", "memory"} <= set(resources["requests"])
    assert pod(model(gpu=gpu)).get("tolerations", []) == [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in limits or ()
    ]


@pytest.mark.parametrize(
    ("gpu", "expressions"),
    [
        ({}, None),
        (
            {"product": ["NVIDIA-L4", "NVIDIA-A10"]},
            [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "NVIDIA-A10"]}],
        ),
        ({"memory": "22Gi"}, [{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["22527"]}]),
        # 80 GB are 76293.9 MiB: a node that says 76293 has less.
        ({"memory": "80G"}, [{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["76293"]}]),
    ],
)
def test_a_pod_goes_where_the_gpu_is(gpu, expressions):
    affinity = pod(model(gpu=gpu)).get("affinity")
    if expressions is None:
        assert affinity is None
        return
    term = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == [{"matchExpressions": expressions}]


@pytest.mark.parametrize(
    ("found", "expect"),
    [
        (model(), {"HOME": "/tmp"}),
        (model(secret="hf"), {"HOME": "/tmp", "HF_TOKEN": ("hf", "HF_TOKEN")}),
        (
            model("s3://bucket/q", secret="s3"),
            {
                "HOME": "/tmp",
                "AWS_ACCESS_KEY_ID": ("s3", "AWS_ACCESS_KEY_ID"),
                "AWS_SECRET_ACCESS_KEY": ("s3", "AWS_SECRET_ACCESS_KEY"),
                "AWS_SESSION_TOKEN": ("s3", "AWS_SESSION_TOKEN", "optional"),
                "AWS_REGION": ("s3", "AWS_REGION", "optional"),
                "AWS_ENDPOINT_URL": ("s3", "AWS_ENDPOINT_URL", "optional"),
            },
        ),
        (
            model(runtime={"env": [{"name": "HOME", "value": "/cache"}]}),
            {"HOME": "/cache"},
        ),  # once, the user's
        (
            model(runtime={"env": [{"name": "P", "secretRef": {"name": "s", "key": "k"}}]}),
            {"HOME": "/tmp", "P": ("s", "k")},
        ),
    ],
)
def test_the_environment_has_each_name_once(found, expect):
    def shown(variable: dict[str, Any]) -> Any:
        source = variable.get("valueFrom", {}).get("secretKeyRef")
        optional = ("optional",) if source and source.get("optional") else ()
        return (source["name"], source["key"], *optional) if source else variable["value"]

    variables = container(found)["env"]
    assert {variable["name"]: shown(variable) for variable in variables} == expect
    assert len(variables) == len(expect)


LEAK = "$(AWS_SECRET_ACCESS_KEY)"  # the kubelet puts a variable's value there, a Secret's too


def test_no_value_of_a_secret_is_expanded_into_what_the_user_writes():
    proxied = model(
        f"s3://elsewhere/{LEAK}",
        secret="s3",
        runtime={"env": [{"name": "HTTPS_PROXY", "value": f"http://{LEAK}.example.com/$1"}]},
    )
    texts = [
        *container(proxied)["args"],
        *(variable.get("value", "") for variable in container(proxied)["env"]),
    ]
    (job,) = cache_jobs(replace_cache(proxied), ["node-1"], SETTINGS)
    texts += job["spec"]["template"]["spec"]["containers"][0]["args"]
    held = [text for text in texts if "$" in text]
    assert held == [
        "s3://elsewhere/$$(AWS_SECRET_ACCESS_KEY)",
        "http://$$(AWS_SECRET_ACCESS_KEY).example.com/$$1",
        "s3://elsewhere/$$(AWS_SECRET_ACCESS_KEY)",
    ]


def replace_cache(found: api.InferenceModel) -> api.InferenceModel:
    return replace(found, spec=replace(found.spec, cache=replace(found.spec.cache, prefetch=True)))


def test_a_hub_mirror_is_given_to_models_of_a_hub_only():
    mirrored = BuildSettings(hub_endpoint="http://mirror")
    assert {"name": "HF_ENDPOINT", "value": "http://mirror"} in container(model(), mirrored)["env"]
    assert len(container(model("file:///srv/m"), mirrored)["env"]) == 1


@pytest.mark.parametrize(
    ("drain", "grace_s"),
    [("60s", 75), ("1500ms", 17), ("1h", 3615)],  # endpoint 5 + drain + margin 10
)
def test_kubernetes_waits_longer_than_the_runtime_drains(drain, grace_s):
    found = model(rollout={"drainTimeout": drain})
    assert pod(found)["terminationGracePeriodSeconds"] == grace_s
    assert container(found)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}


@pytest.mark.parametrize(("deadline", "seconds"), [("10m", 600), ("90s", 90), ("100ms", 1)])
def test_the_startup_probe_gives_up_at_the_deadline(deadline, seconds):
    found = model(rollout={"startupDeadline": deadline})
    probe = container(found)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == seconds
    assert deployment(found, 1, SETTINGS)["spec"]["progressDeadlineSeconds"] == seconds


def test_probes_ask_the_paths_of_the_runtime():
    paths = {kind: container(model())[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe")}
    assert set(paths.values()) == {"/readyz"}
    assert container(model())["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_a_failure_is_read_from_the_termination_log():
    found = container(model())
    assert found["terminationMessagePath"] == "/dev/termination-log"
    assert found["args"][found["args"].index("--termination-log") + 1] == "/dev/termination-log"


@pytest.mark.parametrize("replicas", [0, 1, 7])
def test_the_caller_decides_the_number_of_pods(replicas):
    found = deployment(model(rollout={"maxSurge": 0, "maxUnavailable": 2}), replicas, SETTINGS)
    assert found["spec"]["replicas"] == replicas
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 2}


def test_scaling_never_changes_the_pod_template():
    """Or every wake would be a rollout."""
    one, two = deployment(model(), 0, SETTINGS), deployment(model(scaling={"max": 9}), 5, SETTINGS)
    assert one["spec"]["template"] == two["spec"]["template"]


def test_service_and_deployment_choose_the_same_pods():
    found, asked = deployment(model(), 1, SETTINGS), service(model())
    labels = found["spec"]["template"]["metadata"]["labels"]
    chosen = asked["spec"]["selector"]
    assert chosen == found["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= labels.items()
    assert selector_text(model()) == "wisp.dev/model=chat"
    ports = {port["name"]: port["containerPort"] for port in container(model())["ports"]}
    assert ports[asked["spec"]["ports"][0]["targetPort"]] == 8000
    assert asked["spec"]["ports"][0]["port"] == 8000  # nothing translates ports of a headless one


def test_children_are_deleted_with_their_model():
    owned, free = service(model(uid="u-1"))["metadata"], service(model())["metadata"]
    assert "ownerReferences" not in free  # a file on a machine has no uid
    (owner,) = owned["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        *("InferenceModel", "chat", "u-1", True),
    )
