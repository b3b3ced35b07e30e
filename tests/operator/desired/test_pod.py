"""Resources, metadata and placement that a model sets for its pods."""

from __future__ import annotations

from typing import Any

import pytest

from wisp_operator import api
from wisp_operator.cluster.observation.nodes import devices, eligible
from wisp_operator.desired.cache_job import cache_jobs
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.pod.resources import canonical
from wisp_operator.desired.settings import BuildSettings

SETTINGS = BuildSettings(cpu_request="1000m", memory_request="4Gi", ephemeral_storage_request="256Mi")


def model(**spec: Any) -> api.InferenceModel:
    document = {"apiVersion": api.API_VERSION, "kind": api.KIND, "metadata": {"name": "chat"}}
    return api.parse({**document, "spec": {"model": {"uri": "hf://acme/q"}, "gpu": {"count": 0}, **spec}})


def template(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = deployment(model(**spec), 1, SETTINGS)["spec"]["template"]
    return found


def pod(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = template(podTemplate=spec)["spec"]
    return found


def resources(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = template(resources=given)["spec"]["containers"][0]["resources"]
    return found


def test_without_a_word_of_the_model_the_installation_decides():
    amounts = {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "256Mi"}
    assert resources() == {"requests": amounts}


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [
        ({"requests": {"cpu": 2}}, {"cpu": "2"}, None),
        ({"requests": {"cpu": "0.5"}, "limits": {"cpu": "1500m"}}, {"cpu": "500m"}, {"cpu": "1500m"}),
        # A limit below the installation's request lowers the request, or the pod would be refused.
        ({"limits": {"memory": "2Gi"}}, {"memory": "2Gi"}, {"memory": "2Gi"}),
        ({"limits": {"memory": "8192Mi"}}, {"memory": "4Gi"}, {"memory": "8Gi"}),
        (
            {"requests": {"ephemeralStorage": "1Ti"}, "limits": {"ephemeralStorage": "2Ti"}},
            {"ephemeral-storage": "1Ti"},
            {"ephemeral-storage": "2Ti"},
        ),
    ],
)
def test_a_model_sets_its_own_amounts(given, requests, limits):
    found = resources(**given)
    assert found["requests"].items() >= requests.items()
    assert found.get("limits") == limits


def test_amounts_of_the_model_stand_beside_its_gpu():
    found = template(gpu={"count": 1}, resources={"limits": {"memory": "8Gi"}})["spec"]["containers"][0]
    assert found["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        *(("1000m", "1"), ("0.5", "500m"), ("1500m", "1500m"), ("2", "2"), ("2000", "2k")),
        *(("1024Mi", "1Gi"), ("1536Mi", "1536Mi"), ("1Gi", "1Gi"), ("1000M", "1G"), ("4Gi", "4Gi")),
        *(("1.5Gi", "1536Mi"), ("0", "0"), ("lots", "lots")),
    ],
)
def test_an_amount_is_written_as_the_api_server_stores_it(given, stored):
    assert canonical(given) == stored


def test_labels_and_annotations_reach_the_pods_and_never_replace_the_operators_own():
    found = template(podTemplate={"labels": {"team": "a"}, "annotations": {"prometheus.io/scrape": "true"}})
    assert found["metadata"]["labels"].items() >= {"team": "a", "wisp.dev/model": "chat"}.items()
    assert found["metadata"]["annotations"].items() >= {"prometheus.io/scrape": "true"}.items()


def test_a_prefetch_job_has_them_too_and_is_another_job_with_others():
    def job(**spec: Any) -> dict[str, Any]:
        (only,) = cache_jobs(model(cache={"type": "PVC", "prefetch": True}, **spec), [], SETTINGS)
        return only

    labelled = job(podTemplate={"labels": {"team": "a"}})
    assert labelled["spec"]["template"]["metadata"]["labels"]["team"] == "a"
    assert labelled["metadata"]["name"] != job()["metadata"]["name"]


ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
NOT_SPOT = {"key": "spot", "operator": "DoesNotExist"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def test_affinity_priority_and_spread_are_those_of_a_kubernetes_pod():
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}
    affinity = {
        "nodeAffinity": {PREFERRED: [{"weight": 5, "preference": {"matchExpressions": [ZONE]}}]},
        "podAntiAffinity": {REQUIRED: [apart], PREFERRED: [{"weight": 1, "podAffinityTerm": apart}]},
    }
    spread = [{"topologyKey": "topology.kubernetes.io/zone"}]
    found = pod(affinity=affinity, priorityClassName="inference", topologySpreadConstraints=spread)
    assert found["affinity"] == affinity
    assert found["priorityClassName"] == "inference"
    (constraint,) = found["topologySpreadConstraints"]
    assert constraint["labelSelector"] == {"matchLabels": {"wisp.dev/model": "chat"}}
    assert (constraint["maxSkew"], constraint["whenUnsatisfiable"]) == (1, "ScheduleAnyway")


def test_an_empty_selector_of_pods_is_written_since_without_one_a_term_means_no_pod():
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    affinity = {"podAntiAffinity": {REQUIRED: [apart]}}
    assert pod(affinity=affinity)["affinity"] == affinity


def test_each_term_of_node_affinity_has_the_conditions_on_the_gpu_as_well():
    """Terms are alternatives: a condition that stands in one alone would not hold in the others."""
    terms = [{"matchExpressions": [ZONE]}, {"matchExpressions": [NOT_SPOT]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    gpu = {"count": 1, "product": ["NVIDIA-L4"]}
    found = template(gpu=gpu, podTemplate={"affinity": affinity})["spec"]["affinity"]["nodeAffinity"]
    built = [term["matchExpressions"] for term in found[REQUIRED]["nodeSelectorTerms"]]
    assert [len(conditions) for conditions in built] == [2, 2]
    assert all(conditions[0]["key"] == "nvidia.com/gpu.product" for conditions in built)
    assert [conditions[1] for conditions in built] == [ZONE, NOT_SPOT]


def node(name: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"memory": "64Gi"}},
    }


@pytest.mark.parametrize(
    ("operator", "values", "names"),
    [
        ("In", ["1", "2"], ["one", "two"]),
        ("NotIn", ["1"], ["two", "none"]),
        ("Exists", [], ["one", "two"]),
        ("DoesNotExist", [], ["none"]),
        ("Gt", ["1"], ["two"]),
        ("Lt", ["2"], ["one"]),
        ("Gt", [], []),  # refused by the API server; here it matches nothing
    ],
)
def test_a_node_is_eligible_if_it_meets_the_required_affinity(operator, values, names):
    nodes = [node("one", rack="1"), node("two", rack="2"), node("none")]
    terms = [{"matchExpressions": [{"key": "rack", "operator": operator, "values": values}]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    spec = model(podTemplate={"affinity": affinity}).spec
    assert [found["metadata"]["name"] for found in eligible(spec, nodes)] == names


def test_the_memory_limit_bounds_what_a_model_on_the_cpu_is_checked_against():
    limited = model(resources={"limits": {"memory": "8Gi"}}).spec
    (free,), (bound,) = (devices(spec, [node("one")]).values() for spec in (model().spec, limited))
    assert bound.available_bytes * 8 == pytest.approx(free.available_bytes, rel=1e-6)
