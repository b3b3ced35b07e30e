"""Agreement of the API server and ``wisp``: both accept the same manifests and refuse with the same words.

The API server is played by :mod:`crd_server`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from crd_server import ROOT, SCHEMA, Found, broken_rules, fill_in, holds, manifest, nodes, validator
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp_operator import api
from wisp_operator.api.manifests import read_files
from wisp_operator.api.rules import RULES
from wisp_operator.errors import InvalidModel

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))


def problems(document: Mapping[str, Any]) -> Found:
    try:
        api.parse(document)
    except InvalidModel as error:
        return [(problem.path, problem.message) for problem in error.problems]
    return []


def uri(text: str, **more: Any) -> dict[str, Any]:
    return {"model": {"uri": text, **more}}


SPREAD = "spec.podTemplate.topologySpreadConstraints"
NO_SHAPE = [
    # (spec, path of the problem): refused by the schema alone
    ({"scalling": {}}, "spec.scalling"),
    ({"gpu": {"cuont": 1}}, "spec.gpu.cuont"),
    ({"model": {}}, "spec.model.uri"),
    (uri(""), "spec.model.uri"),
    (uri("hf://" + "a" * 600), "spec.model.uri"),
    ({"model": "hf://Qwen/Qwen3-0.6B"}, "spec.model"),
    (uri("hf://a/b", revision="bad revision"), "spec.model.revision"),
    (uri("hf://a/b", secretRef={}), "spec.model.secretRef.name"),
    (uri("hf://a/b", secretRef={"name": "Upper"}), "spec.model.secretRef.name"),
    ({"replicas": -1}, "spec.replicas"),
    ({"replicas": "2"}, "spec.replicas"),
    ({"replicas": True}, "spec.replicas"),
    ({"replicas": 1.5}, "spec.replicas"),
    ({"scaling": {"max": 0}}, "spec.scaling.max"),
    ({"scaling": {"idleAfter": "0s"}}, "spec.scaling.idleAfter"),
    ({"scaling": {"idleAfter": "10 minutes"}}, "spec.scaling.idleAfter"),
    ({"scaling": {"idleAfter": 10}}, "spec.scaling.idleAfter"),
    ({"coldStart": {"mode": "hold"}}, "spec.coldStart.mode"),
    ({"coldStart": {"queueLimit": 0}}, "spec.coldStart.queueLimit"),
    ({"runtime": {"maxContext": "8k"}}, "spec.runtime.maxContext"),
    ({"runtime": {"maxContext": 0}}, "spec.runtime.maxContext"),
    ({"runtime": {"maxConcurrent": "many"}}, "spec.runtime.maxConcurrent"),
    ({"runtime": {"quantization": "int3"}}, "spec.runtime.quantization"),
    ({"runtime": {"prefixCache": "yes"}}, "spec.runtime.prefixCache"),
    ({"runtime": {"decodePath": "persistent"}}, "spec.runtime.decodePath"),
    ({"runtime": {"deterministic": "true"}}, "spec.runtime.deterministic"),
    ({"runtime": {"env": [{"name": "1A", "value": ""}]}}, "spec.runtime.env[0].name"),
    ({"runtime": {"env": [{"name": "A", "value": 1}]}}, "spec.runtime.env[0].value"),
    ({"runtime": {"env": [{"value": "x"}]}}, "spec.runtime.env[0].name"),
    ({"gpu": {"count": 9}}, "spec.gpu.count"),
    *(
        ({"resources": {"limits": {"cpu": cpu}}}, "spec.resources.limits.cpu")
        for cpu in (0, "0.0", "2 cores")
    ),
    ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "spec.resources.requests.nvidia.com/gpu"),
    ({"podTemplate": {"hostNetwork": True}}, "spec.podTemplate.hostNetwork"),
    ({"podTemplate": {"affinity": {"podAffinity": []}}}, "spec.podTemplate.affinity.podAffinity"),
    ({"podTemplate": {"topologySpreadConstraints": [{}]}}, f"{SPREAD}[0].topologyKey"),
    ({"gpu": {"memory": "24GB"}}, "spec.gpu.memory"),
    ({"gpu": {"product": "NVIDIA-L4"}}, "spec.gpu.product"),
    ({"gpu": {"product": []}}, "spec.gpu.product"),
    ({"gpu": {"nodeSelector": {"pool": 3}}}, "spec.gpu.nodeSelector.pool"),
    ({"gpu": {"tolerations": [{"operator": "In"}]}}, "spec.gpu.tolerations[0].operator"),
    ({"gpu": {"resourceName": "gpu"}}, "spec.gpu.resourceName"),
    ({"cache": {"type": "Disk"}}, "spec.cache.type"),
    ({"routing": {"policy": "RoundRobin"}}, "spec.routing.policy"),
    ({"access": {"apiKeySecretRef": {"name": ""}}}, "spec.access.apiKeySecretRef.name"),
    ({"suspend": "true"}, "spec.suspend"),
]

BROKEN = [
    # (spec, beginning of each sentence): whole in shape, refused by rules
    ({"replicas": 1, "scaling": {}}, ["spec.replicas and spec.scaling exclude each other"]),
    ({"scaling": {"min": 3, "max": 2}}, ["spec.scaling.min is larger"]),
    ({"scaling": {"min": 2}}, ["spec.scaling.min is larger"]),  # than the default of max
    ({"scaling": {"panicWindow": "60s"}}, ["spec.scaling.panicWindow must be shorter"]),
    ({"scaling": {"stableWindow": "6000ms"}}, ["spec.scaling.panicWindow must be shorter"]),
    (uri("Qwen/Qwen3-0.6B"), ["spec.model.uri must start with"]),
    (uri("https://huggingface.co/a/b"), ["spec.model.uri must start with"]),
    (uri("hf://Qwen3-0.6B"), ["spec.model.uri with hf://"]),
    (uri("hf://Qwen/Qwen3-0.6B@main"), ["spec.model.uri with hf://"]),
    (uri("hf://Qwen/Qwen3-0.6B\n"), ["spec.model.uri with hf://"]),  # as `uri: |` gives
    (uri("s3://b"), ["spec.model.uri with s3://"]),
    (uri("pvc://Models/qwen"), ["spec.model.uri with pvc://"]),
    (uri("pvc://models/../secrets"), ["spec.model.uri with pvc://"]),
    (uri("oci://ghcr.io/acme/qwen"), ["spec.model.uri with oci://"]),
    (uri("file://models/qwen"), ["spec.model.uri with file://"]),
    (uri("file:///srv/../etc"), ["spec.model.uri with file://"]),
    (uri("file:///"), ["spec.model.uri with file://"]),
    (uri("file:///srv/m", revision="main"), ["spec.model.revision only"]),
    (uri("pvc://models", secretRef={"name": "s"}), ["spec.model.secretRef is only"]),
    ({"cache": {"type": "Image"}}, ["spec.cache.type Image"]),
    ({"cache": {"type": "None", "prefetch": True}}, ["spec.cache.prefetch needs somewhere"]),
    ({**uri("file:///srv/m"), "cache": {"prefetch": True}}, ["spec.cache.prefetch has nothing"]),
    ({"coldStart": {"mode": "Reject", "heartbeat": "5s"}}, ["spec.coldStart.heartbeat has no effect"]),
    ({"coldStart": {"heartbeat": "5m"}}, ["spec.coldStart.heartbeat must be shorter"]),
    ({"rollout": {"maxSurge": 0}}, ["spec.rollout.maxSurge and maxUnavailable"]),
    ({"gpu": {"count": 2}}, ["spec.gpu.count above 1"]),
    ({"gpu": {"count": 0, "memory": "24Gi"}}, ["spec.gpu.product and spec.gpu.memory"]),
    ({"gpu": {"count": 0, "product": ["NVIDIA-L4"]}}, ["spec.gpu.product and spec.gpu.memory"]),
    ({"gpu": {"nodeSelector": {"nvidia.com/gpu.product": "L4"}}}, ["spec.gpu.nodeSelector must not"]),
    ({"gpu": {"tolerations": [{"operator": "Exists", "value": "x"}]}}, ["spec.gpu.tolerations: operator"]),
    ({"gpu": {"tolerations": [{"value": "x"}]}}, ["spec.gpu.tolerations: operator"]),
    ({"gpu": {"tolerations": [{"key": "a", "tolerationSeconds": 1}]}}, ["spec.gpu.tolerations: tolerationS"]),
    ({"gpu": {"count": 0}, "runtime": {"quantization": "int8"}}, ["spec.runtime.quantization must be"]),
    (
        {"gpu": {"count": 0}, "runtime": {"headQuantization": "fp8"}},
        ["spec.runtime.headQuantization must be"],
    ),
    (
        {"runtime": {"kvCacheDtype": "bf16", "kvCacheBf16Layers": 2}},
        ["spec.runtime.kvCacheBf16Layers keeps"],
    ),
    ({"gpu": {"count": 0}, "runtime": {"deterministic": True}}, ["spec.runtime.deterministic needs a GPU"]),
    (
        {"runtime": {"deterministic": True, "decodePath": "general"}},
        ["spec.runtime.deterministic takes the persistent"],
    ),
    ({"runtime": {"deterministic": True, "maxConcurrent": "auto"}}, []),
    (
        {"runtime": {"deterministic": True, "maxConcurrent": 65}},
        ["spec.runtime.deterministic takes at most 64 sequences"],
    ),
    ({"runtime": {"env": [{"name": "WISP_PORT", "value": "1"}]}}, ["spec.runtime.env must not set WISP_*"]),
    ({"runtime": {"env": [{"name": "A"}]}}, ["spec.runtime.env: give each"]),
    (
        {"runtime": {"env": [{"name": "A", "value": "1", "secretRef": {"name": "s", "key": "k"}}]}},
        ["spec.runtime.env: give each"],
    ),
    *(
        (
            {"resources": {"requests": {key: more}, "limits": {key: less}}},
            ["spec.resources: a request is above"],
        )
        for key, more, less in (
            ("cpu", 2, "1500m"),
            ("memory", "1Gi", "1G"),
            ("ephemeralStorage", "2Gi", "1Gi"),
        )
    ),
    *(
        ({"podTemplate": {"labels": {key: "x"}}}, ["spec.podTemplate.labels must not"])
        for key in ("wisp.dev/model", "app.kubernetes.io/name", "pod-template-hash")
    ),
    ({"podTemplate": {"annotations": {"wisp.dev/x": ""}}}, ["spec.podTemplate.annotations must not"]),
    # Several at once are all said.
    (
        {"scaling": {"min": 9}, "rollout": {"maxSurge": 0}},
        ["spec.scaling.min is larger", "spec.rollout.maxSurge and maxUnavailable"],
    ),
]

GOOD = [
    {},
    {"replicas": 0},
    {"replicas": 3, "suspend": True},
    {"scaling": {"min": 1, "max": 4, "stableWindow": "1h30m", "panicWindow": "1500ms"}},
    {"scaling": None, "replicas": None},  # a null is an absent field
    {"coldStart": {"mode": "Reject", "maxWait": "1s"}},
    {"coldStart": {"heartbeat": "299s"}},
    {"gpu": {"count": 0}, "runtime": {"quantization": "bf16"}},
    {"gpu": {"product": ["NVIDIA-L4"], "memory": "22Gi", "nodeSelector": {"pool": ""}}},
    {"gpu": {"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute"}]}},
    {"runtime": {"maxContext": 8192, "env": [{"name": "A", "value": ""}]}},
    {"resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1024Mi"}}},
    {"podTemplate": {"labels": {"team": "x"}, "annotations": {"a.b/c": ""}, "affinity": {"podAffinity": {}}}},
    {"runtime": {"env": [{"name": "A", "secretRef": {"name": "s", "key": "k"}}]}},
    {"runtime": {"deterministic": True, "decodePath": "auto"}},
    # Refused by Fits: a rule would stop updates of models that were accepted before it (Kubernetes < 1.30).
    {"runtime": {"deterministic": True, "kvCacheDtype": "fp8"}},
    {"gpu": {"count": 0}, "runtime": {"deterministic": False, "decodePath": "general"}},
    {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
    {"cache": {"type": "PVC", "prefetch": True}},
    {**uri("oci://ghcr.io/acme/qwen3-0.6b:1.0"), "cache": {"type": "Image", "prefetch": True}},
    {**uri("oci://ghcr.io/acme/q@sha256:" + "0" * 64)},
    {**uri("file:///srv/models/qwen3-0.6b/"), "replicas": 1},
    {**uri("pvc://models"), "access": {"apiKeySecretRef": {"name": "keys"}}},
    {**uri("pvc://models/a/b"), "routing": {"policy": "LeastLoad"}},
    {**uri("s3://my-models/qwen", secretRef={"name": "s3"}), "cache": {"type": "None"}},
    {**uri("hf://a/b", revision="refs/pr/1", secretRef={"name": "hf"}, servedName="org/model:latest")},
]


@pytest.mark.parametrize(("spec", "path"), NO_SHAPE)
def test_a_wrong_shape_is_refused_by_both_and_named_by_its_path(spec, path):
    assert list(validator().iter_errors(manifest(spec))), "the CRD's schema accepts it"
    assert path in [found for found, _ in problems(manifest(spec))]


@pytest.mark.parametrize(("spec", "sentences"), BROKEN)
def test_a_broken_rule_is_refused_by_both_with_the_same_sentence(spec, sentences):
    assert not list(validator().iter_errors(manifest(spec)))
    found = sorted(broken_rules(manifest(spec)))
    assert found == sorted(problems(manifest(spec)))
    assert len(found) == len(sentences)
    assert all(any(text.startswith(start) for _, text in found) for start in sentences)


@pytest.mark.parametrize("spec", GOOD)
def test_a_good_manifest_is_accepted_by_both(spec):
    pruned = {key: value for key, value in manifest(spec)["spec"].items() if value is not None}
    assert not list(validator().iter_errors({**manifest(spec), "spec": pruned}))
    assert broken_rules({**manifest(spec), "spec": pruned}) == []
    assert problems(manifest(spec)) == []


@pytest.mark.parametrize(
    "name", ["a" * 63, "a", "a-1", "a" * 64, "1a", "a-", "A", "a.b", "a\n", "", "kubernetes"]
)
def test_both_judge_a_name_alike(name):
    assert broken_rules(manifest({}, name)) == problems(manifest({}, name))


def test_no_model_takes_the_name_of_the_api_servers_service():
    assert "Service of the API server" in problems(manifest({}, "kubernetes"))[0][1]
    assert problems(manifest({}, "kubernetes-chat")) == []


def test_both_have_the_same_rules_in_the_same_places():
    in_crd: Found = []

    def walk(schema: Mapping[str, Any], path: str) -> None:
        in_crd.extend((path, rule["message"]) for rule in schema.get("x-kubernetes-validations", ()))
        for key, below in schema.get("properties", {}).items():
            walk(below, f"{path}.{key}".lstrip("."))

    walk(SCHEMA, "")
    assert sorted(in_crd) == sorted((rule.path, rule.sentence) for rule in RULES)


def test_every_rule_is_broken_by_some_row_above():
    rows = [manifest(spec) for spec, _ in BROKEN] + [manifest({}, "A"), manifest({}, "kubernetes")]
    assert {rule.sentence for rule in RULES} == {text for row in rows for _, text in problems(row)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence[:40])
def test_a_rule_speaks_in_a_full_sentence_that_names_a_field(rule):
    assert rule.sentence.endswith(".")
    assert rule.sentence.startswith(rule.path or "metadata")
    assert 40 < len(rule.sentence) < 300


def test_the_default_of_a_section_keeps_the_rules_of_that_section():
    """The API server refuses a CRD whose defaults break its rules, looking at the default alone."""
    for path, schema, _ in nodes(SCHEMA, fill_in(SCHEMA, manifest({}))):
        for rule in schema.get("x-kubernetes-validations", ()) if "default" in schema else ():
            assert holds(rule["rule"], schema["default"]), (path, rule["rule"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted_by_both(path):
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    assert len(read_files([path])) == len(documents) > 0
    for document in documents:
        assert not list(validator().iter_errors(document))
        assert broken_rules(document) == []


def test_there_are_examples():
    assert "smollm2.yaml" in [path.name for path in EXAMPLES]


def some(**fields: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these fields, each with one of its values."""
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(found) for key, found in fields.items()})


URIS = [
    *("hf://a/b", "hf://a", "hf://a/b/c", "hf:///b", "s3://bucket/x", "s3://b/x", "s3://bucket/ x"),
    *("pvc://m", "pvc://m/..", "pvc://m/..a", "pvc://M", "oci://r.io/a:1", "oci://r.io/a", "oci://a:1"),
    *("file:///a", "file://a", "file:////a", "file:///a/../b", "FILE:///a", " hf://a/b", "hf://a/b\n", "x"),
]
DURATIONS = ["1s", "5s", "6s", "60s", "1m", "300s", "1h", "100ms"]
TAINTS = [{}, {"operator": "Exists"}, {"key": "a", "value": "b"}, {"operator": "Exists", "value": "b"}]
TAINTS += [{"key": "a", "tolerationSeconds": 5, **effect} for effect in ({}, {"effect": "NoExecute"})]
VARIABLES = [{"name": name, **value} for name in ("A", "WISP_A", "wisp_a") for value in ({}, {"value": ""})]
SECRET = {"name": "s"}
specs = st.fixed_dictionaries(
    {
        "model": st.builds(
            lambda uri, more: {"uri": uri, **more},
            st.sampled_from(URIS),
            some(revision=["v1"], secretRef=[SECRET]),
        )
    },
    optional={
        "replicas": st.sampled_from([0, 1]),
        "scaling": some(min=[0, 1, 2, 5], max=[1, 2, 5], stableWindow=DURATIONS, panicWindow=DURATIONS),
        "coldStart": some(mode=["Hold", "Reject"], heartbeat=DURATIONS, maxWait=DURATIONS),
        "cache": some(type=["NodeLocal", "PVC", "Image", "None"], prefetch=[True, False]),
        "rollout": some(maxSurge=[0, 1], maxUnavailable=[0, 1]),
        "gpu": some(
            count=[0, 1, 2],
            product=[["NVIDIA-L4"]],
            memory=["24Gi"],
            nodeSelector=[{}, {"nvidia.com/gpu.product": "L4"}, {"pool": "a"}],
            tolerations=[[], *([taint] for taint in TAINTS), TAINTS[1:3]],
        ),
        "runtime": some(
            quantization=["auto", "bf16", "fp8"],
            headQuantization=["bf16", "fp8"],
            kvCacheDtype=["auto", "bf16", "fp8"],
            kvCacheBf16Layers=[0, 2],
            decodePath=["auto", "general"],
            deterministic=[True, False],
            env=[
                [],
                *([variable] for variable in VARIABLES),
                [{"name": "A", "secretRef": {**SECRET, "key": "k"}}],
            ],
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(specs)
def test_whatever_the_spec_both_find_the_same_rules_broken(spec):
    assert sorted(broken_rules(manifest(spec))) == sorted(problems(manifest(spec)))
