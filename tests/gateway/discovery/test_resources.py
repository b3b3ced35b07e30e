"""InferenceModels and EndpointSlices, read as the operator and the CRD mean them."""

from __future__ import annotations

import json
from pathlib import Path

import fake_apiserver as fake
import pytest
import yaml

from wisp_gateway.discovery import resources, secret_keys, snapshot
from wisp_gateway.discovery.key_digests import digest
from wisp_gateway.errors import DiscoveryError
from wisp_gateway.inbound.auth import Keyring
from wisp_operator import api
from wisp_operator.core.conditions import condition
from wisp_operator.core.status import Status
from wisp_operator.desired import labels, service
from wisp_operator.local.gateway.directory import entry

CRD = yaml.safe_load((Path(__file__).parents[3] / "crds" / "inferencemodels.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def defaulted(value, schema):
    """Fill in a schema's defaults, as the API server does."""
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, below in schema.get("properties", {}).items():
        if name not in filled and "default" in below:
            filled[name] = below["default"]
        if name in filled:
            filled[name] = defaulted(filled[name], below)
    return filled


@pytest.mark.parametrize(
    "fill", [lambda spec, _: spec, defaulted], ids=["as written", "with the CRD's defaults"]
)
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"coldStart": {"mode": "Reject", "maxWait": "1h30m"}},
        {"coldStart": {"maxWait": "2m500ms", "heartbeat": "250ms", "queueLimit": 7}},
        {"coldStart": {}},
        {"routing": {"policy": "LeastLoad"}},
        {"scaling": {"min": 1, "max": 3, "targetConcurrency": 5}},
        {"scaling": {"max": 3}},
        {"scaling": {"idleAfter": "1h30m"}},
        {"replicas": 2},  # scaled by hand: targetConcurrency still has its default
        {"model": {"uri": "file:///srv", "servedName": "gpt-4o"}},
        {"access": {"apiKeySecretRef": {"name": "keys"}}},
        {"suspend": True},
        {"gpu": {"count": 0}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
    ],
    ids=json.dumps,
)
def test_a_spec_is_read_as_the_operator_reads_it(spec, fill):
    spec = {"model": {"uri": "file:///srv"}, **spec}
    item = fake.model_object(**fill(spec, SCHEMA))
    head = {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel"}
    theirs = api.parse({**head, "metadata": {"name": "m", "namespace": "ns"}, "spec": spec})
    ready = condition("Ready", "True", "ScaledToZero")
    state = "Suspended" if spec.get("suspend") else "Asleep"
    item["status"] = Status(state, conditions=(ready,)).to_dict()
    written = entry(
        theirs, Status(state, conditions=(ready,)), None, [], created=1767323045, api_keys=Path("k")
    )
    only_here = {"apiKeysFile": None, "canStop": False}  # a cluster's operator stops no model by hand
    expected = snapshot.parse(json.dumps({"models": [{**written, **only_here}]}))["ns/m"]
    parsed = resources.read_model(item)
    assert parsed.model == expected
    assert (parsed.secret is not None) == (written["apiKeysFile"] is not None)


@pytest.mark.parametrize(
    ("spec", "status", "expect"),
    [
        ({}, {}, "Asleep"),  # not yet seen by the operator: requests wait
        ({}, {"state": "Ready"}, "Ready"),
        ({}, {"state": "Failed", "observedGeneration": 2}, "Failed"),
        ({}, {"state": "Failed", "observedGeneration": 1}, "Waking"),  # the spec was mended since
        ({"suspend": True}, {"state": "Ready"}, "Suspended"),  # before the operator has seen it
        ({"suspend": True}, {}, "Suspended"),
        ({}, {"state": "Suspended"}, "Asleep"),  # resumed
        ({"replicas": 0}, {"state": "Suspended"}, "Suspended"),
        ({"replicas": 0}, {"state": "Ready"}, "Ready"),  # until its pods are gone
        ({}, {"state": "Hibernating"}, "Waking"),  # a newer operator
    ],
)
def test_the_state_is_the_operators_unless_a_newer_spec_overrides_it(spec, status, expect):
    item = fake.model_object(status=status, **spec)
    item["metadata"]["generation"] = 2
    assert resources.read_model(item).model.state == expect


@pytest.mark.parametrize(
    ("status", "expect"),
    [
        ({"state": "Waking"}, "schedule"),
        ({"state": "Waking", "coldStart": {"phases": {"schedule": 1}}}, "import"),  # before it can pull
        ({"state": "Waking", "coldStart": {"phases": {"schedule": 1, "pull": 0, "import": 1}}}, "weights"),
        ({"state": "Ready", "coldStart": {"phases": {"schedule": 1}}}, None),
        ({"state": "Waking", "coldStart": {"phases": dict.fromkeys(resources.PHASES, 1)}}, None),
    ],
)
def test_a_waking_model_is_in_the_first_phase_that_is_not_done(status, expect):
    assert resources.read_model(fake.model_object(status=status)).model.phase == expect


@pytest.mark.parametrize(
    ("scaling", "idle_after_s"),
    [
        ({}, 600.0),
        ({"idleAfter": "90s"}, 90.0),
        ({"min": 1, "idleAfter": "90s"}, None),
        ({"idleAfter": "P1D"}, None),  # as a newer CRD may write it: it is shown and nothing else
        ({"idleAfter": {"seconds": 90}}, None),
        ({"min": "one"}, None),
    ],
)
def test_an_idle_time_that_cannot_be_read_keeps_no_model_from_being_served(scaling, idle_after_s):
    assert resources.read_model(fake.model_object(scaling=scaling)).model.idle_after_s == idle_after_s


@pytest.mark.parametrize(
    ("status", "verdict"),
    [({}, ""), ({"fit": {}}, ""), ({"fit": {"verdict": "DoesNotFit", "message": "…"}}, "DoesNotFit")],
)
def test_the_verdict_before_any_pod_is_that_of_the_status(status, verdict):
    assert resources.read_model(fake.model_object(status=status)).model.fit_verdict == verdict


def test_a_model_that_is_being_deleted_is_gone():
    item = fake.model_object()
    item["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert resources.read_model(item) is None


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"coldStart": {"maxWait": "soon"}}, "spec.coldStart.maxWait"),
        ({"coldStart": {"mode": 1}}, "spec.coldStart.mode"),
        ({"coldStart": []}, "spec.coldStart"),
        ({"scaling": {"targetConcurrency": "many"}}, "spec.scaling.targetConcurrency"),
        ({"access": {"apiKeySecretRef": {}}}, "spec.access.apiKeySecretRef.name"),
    ],
)
def test_validation_errors_of_a_spec_name_the_field(spec, named):
    with pytest.raises(DiscoveryError, match=named):
        resources.read_model(fake.model_object(**spec))


@pytest.mark.parametrize(
    ("conditions", "ready", "draining"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True, False),
        ({"ready": False, "serving": False, "terminating": False}, False, False),
        ({"ready": False, "serving": True, "terminating": True}, False, True),
        ({"ready": True, "terminating": True}, False, True),  # publishNotReadyAddresses
        ({}, True, False),  # Kubernetes: unknown is to be read as ready
    ],
)
def test_the_conditions_of_an_endpoint(conditions, ready, draining):
    (endpoint,) = resources.read_slice(fake.slice_object(fake.pod("p", **conditions))).endpoints
    assert endpoint == snapshot.Endpoint("p", "10.0.0.1:8000", ready=ready, draining=draining)


READY = {"ready": True, "terminating": False}
STARTING = {"ready": False, "terminating": False}
LEAVING = {"ready": False, "terminating": True}


@pytest.mark.parametrize(
    ("slices", "expect"),
    [
        ([[("a", "10.0.0.1", READY)], [("b", "10.0.0.2", STARTING)]], "a 10.0.0.1 ready, b 10.0.0.2"),
        ([[("a", "fd00::1", READY)], [("a", "10.0.0.1", READY)]], "a 10.0.0.1 ready"),  # dual stack
        ([[("a", "10.0.0.1", READY)], [("a", "10.0.0.1", LEAVING)]], "a 10.0.0.1 draining"),  # being moved
        ([[("a", "10.0.0.1", STARTING)], [("a", "10.0.0.1", READY)]], "a 10.0.0.1 ready"),
        ([[("a", "fd00::1", READY)]], "a [fd00::1] ready"),
        ([[]], ""),
        ([], ""),
    ],
)
def test_the_slices_of_a_model_are_merged(slices, expect):
    slices_read = [
        resources.read_slice(fake.slice_object(*(fake.pod(name, at, **so) for name, at, so in pods)))
        for pods in slices
    ]
    merged = [
        f"{pod.id} {pod.address.removesuffix(':8000')}{' ready' * pod.ready}{' draining' * pod.draining}"
        for pod in resources.merge_slices(slices_read)
    ]
    assert ", ".join(merged) == expect


@pytest.mark.parametrize(
    "labelled",
    [
        {},
        {"kubernetes.io/service-name": "m"},
        {"wisp.dev/model": "m"},
        {"wisp.dev/model": "m", "kubernetes.io/service-name": "other"},  # another Service of the same pods
    ],
)
def test_only_slices_of_a_models_own_service_count(labelled):
    item = fake.slice_object(fake.pod("p"))
    item["metadata"]["labels"] = labelled
    assert resources.read_slice(item) is None


@pytest.mark.parametrize(
    "ports", [[], None, [{"name": "metrics", "port": 9}], [{"name": "http", "port": None}]]
)
def test_a_slice_without_the_port_has_no_endpoints(ports):
    item = fake.slice_object(fake.pod("p"))
    item["ports"] = ports
    assert resources.read_slice(item).endpoints == ()


def test_the_operators_service_is_the_one_whose_slices_are_read():
    head = {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "m"}}
    made = service.service(api.parse({**head, "spec": {"model": {"uri": "file:///srv"}}}))
    # The EndpointSlice controller copies a Service's labels to its slices and adds the Service's name.
    assert made["metadata"]["labels"][resources.MODEL_LABEL] == made["metadata"]["name"] == "m"
    assert labels.MODEL_LABEL == resources.MODEL_LABEL
    assert [port["name"] for port in made["spec"]["ports"]] == [resources.PORT_NAME]


@pytest.mark.parametrize(
    ("values", "opening", "not_opening"),
    [
        ({"alice": "sk-1", "bob": "sk-2\n"}, ["sk-1", "sk-2"], ["", "sk-3", "alice", "sk-2\n"]),
        ({}, [], ["", "sk-1"]),
        ({"empty": "", "blank": " \n"}, [], ["", " "]),
    ],
)
def test_each_value_of_a_secret_is_one_key(values, opening, not_opening):
    keys = secret_keys.parse(fake.secret_object(**values)).keys
    model = snapshot.Model("ns", "m", "m", "Ready", keys=keys)
    keyring = Keyring(None)
    assert [token for token in opening if keyring.key(digest(token), model) is None] == []
    assert [token for token in not_opening if keyring.key(digest(token), model) is not None] == []


def test_a_slice_of_host_names_is_no_models():
    item = fake.slice_object(fake.pod("p", "metadata.internal"))
    item["addressType"] = "FQDN"
    assert resources.read_slice(item) is None


def test_the_name_of_a_value_carries_its_priority():
    values = {"alice": "sk-1", "chat.high": "sk-2", "jobs.low": "sk-3"}
    keys = secret_keys.parse(fake.secret_object(**values)).keys
    model = snapshot.Model("ns", "m", "m", "Ready", keys=keys)
    given = [Keyring(None).key(digest(token), model).priority for token in ("sk-1", "sk-2", "sk-3")]
    assert given == ["normal", "high", "low"]


def test_a_value_that_no_client_could_send_is_no_key():
    secret = {"data": {"key": "c2stMQ==", "certificate": "/////w==", "broken": "%%%"}}
    assert len(secret_keys.parse(secret).keys) == 1
