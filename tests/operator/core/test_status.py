"""Status of a model: the state, the conditions, the columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from wisp_operator import api
from wisp_operator.core import runtime_state
from wisp_operator.core.autoscale import Decision, decide
from wisp_operator.core.conditions import REASONS, condition, with_times
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.observation import Demand, Failure, Observation, ObservedPod, Sample
from wisp_operator.core.status import Progress, invalid_status, progress, summarise
from wisp_operator.core.times import timestamp
from wisp_operator.errors import Problem

NOW = 1_800_000_000.0
CRD = yaml.safe_load((Path(__file__).parents[3] / "crds" / "inferencemodels.yaml").read_text())
STATUS_SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
KINDS = ["Accepted", "Fits", "ArtifactsReady", "Scheduled", "Ready", "Active", "Progressing", "Degraded"]


def model(uri: str = "hf://a/b", **spec: Any) -> api.InferenceModel:
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat", "generation": 3},
        "spec": {"model": {"uri": uri}, **spec},
    }
    return api.parse(document)


def pod(
    phase: Any, name: str = "p", *, ready: bool = False, message: str = "", **runtime: Any
) -> ObservedPod:
    was_ready = ready or phase in ("Ready", "Unready")
    state = runtime_state.parse(runtime) if runtime else None
    return ObservedPod(name, phase, NOW - 60, NOW - 30 if was_ready else None, 0, state, message)


def phases(*done: str, now: str = "") -> list[dict[str, Any]]:
    found = [{"name": name, "seconds": 1.5, "state": "done", "bytes": 0, "totalBytes": 0} for name in done]
    return (
        [*found, {"name": now, "seconds": 0.5, "state": "running", "bytes": 40, "totalBytes": 100}]
        if now
        else found
    )


def summary(observation: Observation, found: api.InferenceModel | None = None):
    found = found or model()
    return summarise(found, observation, decide(found.spec, observation, NOW), NOW)


READY, STARTING = pod("Ready"), pod("Starting")
ASKED = Demand(waiting=1, idle_s=0.0, history=(Sample(NOW, 1.0),))
KILLED = Failure("Killed", "out of memory", NOW - 1, 137)
TOO_BIG = Failure("DoesNotFit", "needs 17.1 GiB, the L4 has 14.8 GiB free", NOW - 1, 3)
UNSUPPORTED = FitReport("Unsupported", "config.json: architecture Mystery is not supported.")
MYSTERY = Failure("ModelUnsupported", "config.json: architecture Mystery is not supported.", NOW - 1, 3)
NO_FIT = FitReport("DoesNotFit", "Needs 17.1 GiB, the L4 has 14.8 GiB free; fits with quantization: fp8.")


@pytest.mark.parametrize(
    ("found", "observation", "expect"),
    [
        # (model, observation, (state, Ready's status, reason)); the first thing that is wrong wins
        (model(), Observation(), ("Asleep", "True", "ScaledToZero")),  # asleep is healthy
        (model(), Observation((STARTING,), ASKED), ("Waking", "False", "Waking")),
        (model(), Observation(demand=ASKED), ("Waking", "False", "Waking")),  # decided, no pod yet
        (model(), Observation((pod("Pending"),), ASKED), ("Waking", "False", "Waking")),
        (
            model(),
            Observation(
                (pod("Pending", message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),), ASKED
            ),
            ("Waking", "False", "Unschedulable"),
        ),
        (model(), Observation((READY,)), ("Ready", "True", "Serving")),
        (model(), Observation((READY, STARTING)), ("Ready", "True", "Serving")),
        (model(), Observation((pod("Unready"),), ASKED), ("Waking", "False", "Unready")),
        (model(), Observation((pod("Draining", ready=True),)), ("Asleep", "True", "ScaledToZero")),
        (
            model(),
            Observation((pod("BackingOff"),), ASKED, crashes=2, last_failure=KILLED),
            ("Failed", "False", "CrashBackOff"),
        ),
        (
            model(),
            Observation((), ASKED, crashes=2, last_failure=KILLED),
            ("Failed", "False", "CrashBackOff"),
        ),
        # Nobody asks, so the crash is remembered but nothing is wrong now.
        (model(), Observation((), crashes=2, last_failure=KILLED), ("Asleep", "True", "ScaledToZero")),
        (
            model(),
            Observation((READY, pod("BackingOff", "q")), ASKED, crashes=1, last_failure=KILLED),
            ("Ready", "True", "Serving"),
        ),
        (model(), Observation((), ASKED, crashes=1, last_failure=TOO_BIG), ("Failed", "False", "DoesNotFit")),
        (
            model(),
            Observation((STARTING,), ASKED, crashes=1, last_failure=TOO_BIG),
            ("Waking", "False", "Waking"),
        ),
        (model(), Observation((), ASKED, fit=NO_FIT), ("Failed", "False", "DoesNotFit")),
        (model(), Observation((), ASKED, fit=UNSUPPORTED), ("Failed", "False", "ModelUnsupported")),
        (model(suspend=True), Observation((READY,)), ("Suspended", "False", "Suspended")),
        (model(suspend=True), Observation(fit=NO_FIT), ("Suspended", "False", "Suspended")),
        (
            model(replicas=0),
            Observation(demand=ASKED),
            ("Suspended", "False", "ReplicasZero"),
        ),  # no request wakes it
        (model(replicas=1), Observation(), ("Waking", "False", "Waking")),
        (model(scaling={"min": 1}), Observation(), ("Waking", "False", "Waking")),
    ],
)
def test_the_state_is_the_first_thing_that_matters(found, observation, expect):
    status = summary(observation, found)
    assert (status.state, status.condition("Ready").status, status.reason) == expect


@pytest.mark.parametrize(
    ("kind", "found", "observation", "expect"),
    [
        ("Accepted", model(), Observation(), ("True", "Accepted")),
        ("Fits", model(), Observation(), ("Unknown", "FitUnknown")),
        ("Fits", model(), Observation(fit=FitReport("Unknown", "no card")), ("Unknown", "FitUnknown")),
        ("Fits", model(), Observation(fit=FitReport("Fits", "yes")), ("True", "Fits")),
        ("Fits", model(), Observation(fit=NO_FIT), ("False", "DoesNotFit")),
        ("Fits", model(), Observation(fit=UNSUPPORTED), ("False", "ModelUnsupported")),
        ("Fits", model(), Observation(last_failure=MYSTERY, crashes=1), ("False", "ModelUnsupported")),
        # A pod's measurement outranks the computed fit.
        (
            "Fits",
            model(),
            Observation(fit=FitReport("Fits", "yes"), last_failure=TOO_BIG, crashes=1),
            ("False", "DoesNotFit"),
        ),
        ("ArtifactsReady", model(), Observation(), ("Unknown", "NotFetched")),
        ("ArtifactsReady", model("file:///srv/m"), Observation(), ("True", "InPlace")),
        ("ArtifactsReady", model("pvc://m"), Observation(), ("True", "InPlace")),
        ("ArtifactsReady", model(), Observation((STARTING,)), ("False", "Fetching")),
        (
            "ArtifactsReady",
            model(),
            Observation((pod("Starting", phases=phases("import", now="pull")),)),
            ("False", "Fetching"),
        ),
        (
            "ArtifactsReady",
            model(),
            Observation((pod("Starting", phases=phases("import", "pull", now="weights")),)),
            ("True", "Fetched"),
        ),
        ("ArtifactsReady", model(), Observation((READY,)), ("True", "Fetched")),
        (
            "ArtifactsReady",
            model("file:///srv/m"),
            Observation(last_failure=Failure("ModelNotFound", "no such directory", NOW), crashes=1),
            ("False", "FetchFailed"),
        ),
        ("Scheduled", model(), Observation(), ("Unknown", "NoPods")),
        ("Scheduled", model(), Observation((STARTING,)), ("True", "Placed")),
        ("Scheduled", model(), Observation((pod("Pending"),)), ("Unknown", "Waking")),
        (
            "Scheduled",
            model(),
            Observation((READY, pod("Pending", message="no GPU"))),
            ("False", "Unschedulable"),
        ),
        ("Active", model(), Observation(), ("False", "ScaledToZero")),
        ("Active", model(suspend=True), Observation(), ("False", "Suspended")),
        ("Active", model(), Observation((STARTING,)), ("True", "PodsExist")),
        ("Active", model(), Observation((pod("Draining"),)), ("False", "ScaledToZero")),
        ("Progressing", model(), Observation(), ("False", "Settled")),
        ("Progressing", model(), Observation((STARTING,)), ("True", "Waking")),
        ("Progressing", model(replicas=1), Observation((READY,)), ("False", "Settled")),
        ("Progressing", model(replicas=2), Observation((READY,)), ("True", "Scaling")),
        ("Progressing", model(replicas=1), Observation((READY, pod("Draining", "q"))), ("True", "Scaling")),
        ("Progressing", model(), Observation((), ASKED, 1, KILLED), ("False", "CrashBackOff")),
        ("Degraded", model(), Observation((READY,)), ("False", "AsExpected")),
        ("Degraded", model(), Observation((READY,), crashes=1, last_failure=KILLED), ("True", "PodsFailing")),
    ],
)
def test_each_condition_has_a_named_reason(kind, found, observation, expect):
    shown = summary(observation, found).condition(kind)
    assert (shown.status, shown.reason) == expect


def test_a_crash_message_says_what_happened_how_often_and_when_it_is_tried_again():
    status = summary(Observation((), ASKED, crashes=3, last_failure=KILLED))
    due = timestamp(NOW - 1 + 20)
    assert status.message == f"Killed: out of memory. Tried 3 times. Next try at {due}."


def test_a_model_that_does_not_fit_says_the_numbers_and_the_remedy():
    status = summary(Observation((), ASKED, fit=NO_FIT))
    assert status.message == NO_FIT.message
    assert "fits with quantization: fp8" in status.message


def test_numbers_come_from_the_pods():
    busy = {"tokensPerSecond": 40.26, "kvBlocksUsed": 30, "kvBlocksTotal": 100}
    tokens = {"promptTokensTotal": 1000, "cachedTokensTotal": 250}
    observation = Observation(
        pods=(
            pod("Ready", "a", load={**busy, **tokens}, phases=phases("import", "weights", "firstToken")),
            pod("Ready", "b", load=busy),
            pod("Draining", "c", load=busy),
        ),
        demand=Demand(waiting=2, running=7, idle_s=0.0, history=(Sample(NOW, 9.0),)),
        cold_start_s=(9.0, 4.0, 2.125),
        url="http://127.0.0.1:8080/v1",
    )
    found = summary(observation).to_dict()
    assert (found["replicas"], found["readyReplicas"]) == (3, 2)
    assert found["performance"] == {
        "tokensPerSecond": 80.5,
        "kvCacheUsePercent": 30,
        "prefixCacheHitPercent": 20,  # 250 of 1250: promptTokensTotal is of computed tokens
    }
    assert found["queue"] == {"waiting": 2, "running": 7}
    assert found["coldStart"] == {
        "lastSeconds": 2.12,
        "p50Seconds": 4.0,
        "phases": {"import": 1.5, "weights": 1.5, "firstToken": 1.5},
    }
    assert (found["selector"], found["url"]) == ("wisp.dev/model=chat", "http://127.0.0.1:8080/v1")


@pytest.mark.parametrize(
    ("found", "observation", "expect"),
    [
        (model(), Observation(), "0/0"),
        (model(replicas=2), Observation((READY,)), "1/2"),
        (model(), Observation((READY, pod("BackingOff", "q")), crashes=1, last_failure=KILLED), "1/2"),
        (model(replicas=1), Observation((READY, pod("Draining", "q"))), "1/1"),
        (model(replicas=1), Observation(crashes=1, last_failure=KILLED), "0/1"),  # its next try waits
    ],
)
def test_the_replicas_column_counts_ready_pods_of_those_that_should_be(found, observation, expect):
    assert summary(observation, found).pods == expect


def test_the_last_failure_is_kept_while_at_zero():
    found = summary(Observation((), crashes=2, last_failure=KILLED)).to_dict()
    assert found["state"] == "Asleep"
    assert found["lastFailure"] == {
        "reason": "Killed",
        "message": "out of memory",
        "time": timestamp(NOW - 1),
        "exitCode": 137,
        "count": 2,
    }


def test_what_a_ready_pod_measured_replaces_what_was_computed():
    computed = FitReport(
        "Fits", "computed", weights_bytes=1, gpu="L4", basis="computed from the weights headers"
    )
    ledger = {"fits": True, "message": "measured", "weightsBytes": 2, "headroomBytes": 3, "totalBytes": 9}
    assert summary(Observation((STARTING,), fit=computed)).to_dict()["fit"]["weightsBytes"] == 1
    shown = summary(Observation((pod("Ready", ledger=ledger),), fit=computed)).to_dict()["fit"]
    assert (shown["weightsBytes"], shown["gpu"], shown["basis"]) == (2, "L4", "measured by a pod")


@pytest.mark.parametrize(
    ("pods", "expect"),
    [
        ((), None),
        ((READY,), None),
        ((pod("Pending"),), Progress("schedule")),
        ((STARTING,), Progress("import")),  # no /state yet
        ((pod("Starting", phases=phases("import", now="weights")),), Progress("weights", 0.4)),
        (
            (STARTING, pod("Starting", "q", phases=phases("import", "pull", now="weights"))),
            Progress("weights", 0.4),
        ),  # the foremost
    ],
)
def test_a_waking_model_reports_its_progress(pods, expect):
    assert progress(Observation(pods)) == expect


def test_a_condition_keeps_its_time_until_its_status_changes():
    first = with_times([condition("Ready", "False", "Waking")], [], 1, NOW)
    same = with_times([condition("Ready", "False", "CrashBackOff")], first, 2, NOW + 60)
    changed = with_times([condition("Ready", "True", "Serving")], same, 2, NOW + 90)
    assert [found[0].last_transition_time for found in (first, same, changed)] == [
        *(timestamp(NOW), timestamp(NOW), timestamp(NOW + 90))
    ]
    assert same[0].observed_generation == 2


def test_a_reason_that_is_not_in_the_table_cannot_be_given():
    with pytest.raises(KeyError):
        condition("Ready", "True", "BecauseISaySo")


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_is_one_word_with_a_sentence(reason):
    assert reason.isalnum()
    assert reason[0].isupper()
    assert REASONS[reason].endswith(".")


def test_an_unreadable_object_says_why():
    status = invalid_status([Problem("spec.gpu.cuont", "unknown field")], 4, NOW)
    assert status.state == "Failed"
    assert status.condition("Accepted").message == "spec.gpu.cuont: unknown field"
    assert status.to_dict()["observedGeneration"] == 4


any_pod = st.builds(
    lambda phase, ready: pod(phase, ready=ready),
    st.sampled_from(["Pending", "Starting", "Ready", "Unready", "BackingOff", "Draining"]),
    st.booleans(),
)
any_observation = st.builds(
    lambda pods, demand, failure, crashes, fit: Observation(
        tuple(pods), demand, crashes if failure else 0, failure, fit
    ),
    st.lists(any_pod, max_size=3),
    st.sampled_from([Demand(), ASKED]),
    st.sampled_from([None, KILLED, TOO_BIG]),
    st.integers(1, 5),
    st.sampled_from([None, NO_FIT, FitReport("Fits", "yes"), FitReport("Unknown", "no")]),
)
any_model = st.sampled_from(
    [model(), model(suspend=True), model(replicas=0), model(replicas=2), model(scaling={"min": 1})]
)


@given(any_model, any_observation)
def test_every_status_is_one_that_the_crd_allows(found, observation):
    status = summary(observation, found)
    assert [shown.type for shown in status.conditions] == KINDS
    assert {shown.observed_generation for shown in status.conditions} == {3}
    written = json.loads(json.dumps(status.to_dict()))
    jsonschema.validate(written, STATUS_SCHEMA)
    assert undeclared(written, STATUS_SCHEMA) == []


def undeclared(value: Any, schema: dict[str, Any], path: str = "status") -> list[str]:
    """Fields of a value that its schema does not declare; the API server refuses an apply with one."""
    if isinstance(value, list):
        return [name for item in value for name in undeclared(item, schema["items"], path)]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    deeper = [n for key in value.keys() & known for n in undeclared(value[key], known[key], f"{path}.{key}")]
    return [f"{path}.{key}" for key in value if key not in known] + deeper


def test_a_field_that_the_crd_does_not_have_is_found_at_any_depth() -> None:
    assert undeclared({"fit": {"fault": 1}}, STATUS_SCHEMA) == ["status.fit.fault"]


@given(any_model, any_observation)
def test_the_state_and_the_conditions_never_contradict_each_other(found, observation):
    status = summary(observation, found)
    is_ready = status.condition("Ready").status == "True"
    assert is_ready == (status.state in ("Ready", "Asleep"))
    if status.state == "Asleep":
        assert not observation.live
    if status.state == "Ready":
        assert status.ready_replicas > 0


def test_a_decision_is_not_made_twice():
    """The status reports the decision it is given, even one made on an older observation."""
    status = summarise(model(), Observation(), Decision(1, "Wake"), NOW)
    assert (status.state, status.desired_replicas) == ("Waking", 1)
