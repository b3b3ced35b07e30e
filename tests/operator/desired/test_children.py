"""Children of a model on a cluster, and the devices of its nodes."""

from dataclasses import replace

import pytest

from wisp_operator.api import parse
from wisp_operator.cluster.observation.nodes import devices, eligible, pin_to_products
from wisp_operator.cluster.reconcile.fitting import conclude, unmeasured
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.desired.cache_job import cache_jobs
from wisp_operator.desired.children import BuildContext, children
from wisp_operator.desired.network_policy import network_policy
from wisp_operator.desired.pod.arguments import arguments
from wisp_operator.desired.settings import BuildSettings

SETTINGS = BuildSettings()
FETCHES = {"model": {"uri": "hf://acme/chat", "revision": "v1"}}


def model(**spec):
    document = {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel"}
    metadata = {"name": "chat", "namespace": "a", "uid": "u1"}
    return parse(document | {"metadata": metadata, "spec": {**FETCHES, **spec}})


def around(**more):
    defaults = {
        "replicas": 0,
        "annotations": {},
        "nodes": ["n1"],
        "optional_kinds": (),
        "system_namespace": "wisp",
    }
    return BuildContext(**(defaults | more))


@pytest.mark.parametrize(
    ("spec", "more", "kinds"),
    [
        ({}, {}, []),
        ({}, {"replicas": 2}, ["PodDisruptionBudget"]),
        ({"cache": {"type": "PVC"}}, {}, ["PersistentVolumeClaim"]),
        ({"cache": {"type": "PVC", "prefetch": True}}, {}, ["PersistentVolumeClaim", "Job"]),
        ({"cache": {"prefetch": True}}, {"nodes": ["n1", "n2"]}, ["Job", "Job"]),
        ({"cache": {"prefetch": True}}, {"nodes": []}, []),  # no node yet that could keep it
        ({"model": {"uri": "pvc://models"}, "cache": {"type": "PVC"}}, {}, []),  # in place already
        ({}, {"optional_kinds": ("PodMonitor",)}, ["PodMonitor"]),
        (
            *(
                {},
                {
                    "optional_kinds": ("InferencePool",),
                    "annotations": {"wisp.dev/endpoint-picker": "epp:9002"},
                },
            ),
            ["InferencePool"],
        ),
    ],
)
def test_what_a_model_has_besides_deployment_service_and_policy(spec, more, kinds):
    found = children(model(**spec), around(**more), SETTINGS)
    assert [child["kind"] for child in found][:3] == ["Deployment", "Service", "NetworkPolicy"]
    assert [child["kind"] for child in found][3:] == kinds
    for child in found:
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == ("u1", True)
        assert child["metadata"]["labels"]["wisp.dev/model"] == "chat"


def peers(policy):
    return [next(iter(peer)) for peer in policy["spec"]["ingress"][0]["from"]]


def test_a_model_with_keys_is_reached_through_the_gateway_alone():
    open_model = network_policy(model(), "wisp")
    guarded = network_policy(model(access={"apiKeySecretRef": {"name": "keys"}}), "wisp")
    asking = network_policy(model(), "wisp", asks_tokens=True)
    assert peers(open_model) == ["namespaceSelector", "podSelector"]
    assert peers(guarded) == peers(asking) == ["namespaceSelector"]


@pytest.mark.parametrize(
    ("kinds", "picker", "asks"),
    [
        ((), "", True),
        (("InferencePool",), "epp:9002", False),  # the gateway in front of a pool has no token
        (("InferencePool",), "no port", True),
        ((), "epp:9002", True),  # an annotation that makes no pool opens nothing
    ],
)
def test_pods_ask_for_a_token_unless_another_gateway_is_in_front_of_them(kinds, picker, asks):
    context = around(
        annotations={"wisp.dev/endpoint-picker": picker}, optional_kinds=kinds, token_digests=["ab" * 32]
    )
    deployment, _, policy = children(model(), context, SETTINGS)[:3]
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    digests = [variable["value"] for variable in variables if variable["name"] == "WISP_POD_TOKEN_SHA256"]
    assert digests == (["ab" * 32] if asks else [])
    assert peers(policy) == (["namespaceSelector"] if asks else ["namespaceSelector", "podSelector"])


@pytest.mark.parametrize(
    ("uri", "egress"),
    [
        ("hf://acme/chat", [{}]),
        ("s3://bucket/chat", [{}]),
        ("file:///srv/chat", []),
        ("oci://r.io/chat:1", []),
    ],
)
def test_only_pods_that_fetch_may_call_out(uri, egress):
    assert network_policy(model(model={"uri": uri}), "wisp")["spec"]["egress"] == egress


def test_a_prefetch_job_fetches_what_its_pod_will_read_without_a_gpu():
    job = cache_jobs(model(cache={"prefetch": True}, gpu={"nodeSelector": {"pool": "x"}}), ["n1"], SETTINGS)[
        0
    ]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["args"][:4] == ["pull", "hf://acme/chat", "--revision", "v1"]
    assert "limits" not in container["resources"]
    assert "startupProbe" not in container
    assert pod["nodeSelector"] == {"pool": "x", "kubernetes.io/hostname": "n1"}
    assert pod["volumes"] == children(model(), around(), SETTINGS)[0]["spec"]["template"]["spec"]["volumes"]
    # The model's Service and Deployment select by this label.
    assert "wisp.dev/model" not in job["spec"]["template"]["metadata"]["labels"]


def test_another_revision_is_another_job_since_a_jobs_template_cannot_change():
    first, second = (
        cache_jobs(
            model(model=FETCHES["model"] | {"revision": r}, cache={"prefetch": True}), ["n1"], SETTINGS
        )[0]
        for r in ("v1", "v2")
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]


def node(name, product="", mib=0, gpus=8, **labels):
    labels |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(mib)} if product else {}
    allocatable = {"memory": "24568812Ki"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


T4, L4 = node("t4", "Tesla-T4", 15360), node("l4", "NVIDIA-L4", 23034, pool="big")
UNLABELLED, CPU = node("plain"), node("cpu", gpus=0)
NODES = [T4, L4, UNLABELLED, CPU]


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ({"count": 1}, ["t4", "l4", "plain"]),
        ({"count": 0}, ["t4", "l4", "plain", "cpu"]),
        ({"count": 1, "product": ["NVIDIA-L4"]}, ["l4"]),
        ({"count": 1, "memory": "20Gi"}, ["l4"]),
        ({"count": 1, "nodeSelector": {"pool": "big"}}, ["l4"]),
        ({"count": 1, "nodeSelector": {"pool": "none"}}, []),
        ({"count": 1, "resourceName": "amd.com/gpu"}, []),
    ],
)
def test_a_node_is_eligible_if_its_labels_and_resources_are(gpu, names):
    assert [found["metadata"]["name"] for found in eligible(model(gpu=gpu).spec, NODES)] == names


def test_devices_are_what_the_labels_describe_and_a_silent_node_is_left_out():
    found = devices(model(gpu={"count": 1}).spec, NODES[:3])
    assert {product: device.name for product, device in found.items()} == {
        "Tesla-T4": "T4",
        "NVIDIA-L4": "L4",
    }
    cpu = devices(model(gpu={"count": 0}).spec, [CPU])[""]
    assert (cpu.kind, cpu.available_bytes) == ("cpu", int(24568812 * 1024 * 0.9))


def test_a_model_that_fits_some_gpus_is_sent_to_those():
    def check(device):
        fits = device.name == "L4"
        return FitReport("Fits" if fits else "DoesNotFit", device.name, headroom_bytes=1 if fits else -1)

    def reports(nodes):
        return {product: check(device) for product, device in devices(model().spec, nodes).items()}

    verdict = conclude(model(gpu={"count": 1}), reports(NODES[:3]))
    assert (verdict.report.verdict, verdict.products) == ("Fits", ("NVIDIA-L4",))
    assert pin_to_products(model(), verdict.products).spec.gpu.product == ("NVIDIA-L4",)
    only_small = conclude(model(), reports([T4]))
    assert (only_small.report.verdict, only_small.products) == ("DoesNotFit", ())


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"model": {"uri": "file:///srv/chat"}}, "measured by its first pod"),
        ({"model": {"uri": "s3://bucket/chat"}}, "measured by its first pod"),
        ({"model": {"uri": "hf://acme/chat"}, "gpu": {"count": 1}}, "Any GPU is allowed"),
        ({"model": {"uri": "hf://acme/chat"}, "gpu": {"count": 0}}, "No node for its pods"),
    ],
)
def test_what_cannot_be_known_before_a_pod_says_why(spec, says):
    report = unmeasured(model(**spec), {}).report
    assert report.verdict == "Unknown"
    assert says in report.message


@pytest.mark.parametrize("memory", [None, "1.5Gi"])
def test_a_node_whose_memory_cannot_be_read_is_left_out(memory):
    allocatable = {} if memory is None else {"memory": memory}
    node = {"metadata": {"name": "n1", "labels": {}}, "status": {"allocatable": allocatable}}
    assert devices(model(gpu={"count": 0}).spec, [node]) == {}


@pytest.mark.parametrize(
    ("cache", "folder"),
    [
        ({"type": "NodeLocal"}, "/cache/namespaces/a"),
        ({"type": "None"}, "/cache/namespaces/a"),  # the node's disk too: a tenth of it stays free
        ({"type": "PVC"}, "/cache"),  # the model's own disk
    ],
)
def test_a_download_on_the_disk_of_a_node_goes_to_a_namespaces_folder(cache, folder):
    argv = arguments(model(cache=cache))
    assert argv[argv.index("--cache-dir") + 1] == folder


def test_prefetch_jobs_of_two_models_with_long_names_are_not_one():
    found = model(cache={"prefetch": True})
    jobs = [cache_jobs(replace(found, name="m" * 60 + end), ["n1"], SETTINGS)[0] for end in ("a", "b")]
    assert jobs[0]["metadata"]["name"] != jobs[1]["metadata"]["name"]
    assert max(len(job["metadata"]["name"]) for job in jobs) <= 63
