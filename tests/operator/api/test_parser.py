"""Parsing an InferenceModel: strict, complete, and helpful about what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_operator import api
from wisp_operator.api.quantities import Duration, Quantity
from wisp_operator.errors import InvalidModel


def document(spec: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "hf://Qwen/Qwen3-0.6B"}, **(spec or {})},
        **more,
    }


def said(found: Any) -> list[str]:
    """Every problem of a document as a user reads it."""
    try:
        api.parse(found)
    except InvalidModel as error:
        return [str(problem) for problem in error.problems]
    return []


def test_a_minimal_model_has_every_default():
    model = api.parse(document())
    assert model.key == "default/chat"
    assert model.served_name == "chat"
    assert model.spec.runtime == api.Runtime()
    assert model.spec.autoscaling == api.Scaling()
    assert model.spec.cold_start.max_wait.seconds == 300.0
    assert model.spec.cold_start.heartbeat_s == 10.0


@pytest.mark.parametrize(
    ("spec", "autoscaling"),
    [
        ({}, api.Scaling()),
        ({"scaling": {"max": 3}}, api.Scaling(max=3)),
        ({"replicas": 0}, None),
        ({"replicas": 2}, None),
    ],
)
def test_replicas_by_hand_turn_the_autoscaler_off(spec, autoscaling):
    assert api.parse(document(spec)).spec.autoscaling == autoscaling


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"scalling": {}}, "spec.scalling: unknown field; did you mean spec.scaling?"),
        ({"coldstart": {}}, "spec.coldstart: unknown field; did you mean spec.coldStart?"),
        ({"gpu": {"cuont": 1}}, "spec.gpu.cuont: unknown field; did you mean spec.gpu.count?"),
        ({"gpu": {"Count": 1}}, "spec.gpu.Count: unknown field; did you mean spec.gpu.count?"),
        (
            {"routing": {"zzz": 1}},
            "spec.routing.zzz: unknown field; known here: policy",
        ),
        (
            {"runtime": {"env": [{"name": "A", "vlaue": "1"}]}},
            "spec.runtime.env[0].vlaue: unknown field; did you mean spec.runtime.env[0].value?",
        ),
        ({"replicas": "two"}, "spec.replicas: 'two' is not a whole number"),
        ({"replicas": True}, "spec.replicas: true is not a whole number"),
        ({"replicas": 2000}, "spec.replicas: 2000 is outside 0 to 1000"),
        ({"suspend": "yes"}, "spec.suspend: 'yes' is not true or false"),
        (
            {"coldStart": {"mode": "hold"}},
            "spec.coldStart.mode: 'hold' is not one of: Hold, Reject; did you mean Hold?",
        ),
        (
            {"runtime": {"generationConfig": False}},
            "spec.runtime.generationConfig: false is not one of: auto, none; "
            "YAML reads on, off, yes and no as true and false unless they are in quotes",
        ),
        (
            {"runtime": {"maxContext": "8k"}},
            "spec.runtime.maxContext: '8k' is not one of: auto or a whole number",
        ),
        (
            {"runtime": {"env": [{"name": "A", "value": 1}]}},
            "spec.runtime.env[0].value: 1 is not a text (put it in quotes)",
        ),
        (
            {"runtime": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
            "spec.runtime.env: 'A' appears twice; each name may appear once",
        ),
        (
            {"scaling": {"idleAfter": 600}},
            "spec.scaling.idleAfter: 600 is not a duration; "
            "write a number and ms, s, m or h, e.g. 90s or 1h30m",
        ),
        (
            {"gpu": {"memory": "24GB"}},
            "spec.gpu.memory: '24GB' is not a size; write a whole number and Mi, Gi or Ti, e.g. 24Gi",
        ),
        ({"gpu": {"product": "L4"}}, "spec.gpu.product: 'L4' is not a list"),
        ({"gpu": [1]}, "spec.gpu: [1] is not a map of fields"),
        ({"model": {}}, "spec.model.uri: is required"),
        ({"model": None}, "spec.model: is required"),
    ],
)
def test_a_problem_names_its_path_its_value_and_what_is_allowed(spec, sentence):
    assert said(document(spec)) == [sentence]


def test_every_problem_is_reported_at_once():
    found = said(
        document(
            {
                "scalling": {},
                "replicas": "two",
                "gpu": {"count": 99},
                "scaling": {"min": 4},
                "rollout": {"maxSurge": 0},
                "coldStart": {"mode": "hold", "heartbeat": "10m"},
            }
        )
    )
    assert [line.split(":")[0].split(" ")[0] for line in found] == [
        "spec.scalling",
        "spec.gpu.count",
        "spec.replicas",
        "spec.coldStart.mode",
        "spec.scaling.min",  # the rules that read only good fields are checked too
        "spec.coldStart.heartbeat",
        "spec.rollout.maxSurge",
    ]


@pytest.mark.parametrize(
    ("spec", "silent"),
    [
        # One cause, one sentence: a field that could not be read breaks no rules.
        ({"model": {"uri": 3}}, "spec.model.uri must start"),
        ({"scaling": {"min": "9"}}, "spec.scaling.min is larger"),
        ({"scaling": {"stableWindow": "1"}}, "panicWindow"),
    ],
)
def test_a_rule_is_silent_about_a_field_that_could_not_be_read(spec, silent):
    found = said(document(spec))
    assert len(found) == 1
    assert silent not in found[0]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (None, "the document is not a map of fields"),
        ([], "the document is not a map of fields"),
        ({**document(), "kind": "InferenceModels"}, "did you mean InferenceModel?"),
        (
            {**document(), "kind": "Deployment"},
            "kind: 'Deployment' is not InferenceModel; only InferenceModel",
        ),
        ({**document(), "apiVersion": "wisp.dev/v1"}, "did you mean wisp.dev/v1alpha1?"),
        ({**document(), "metadata": {}}, "metadata.name: is required"),
        ({**document(), "metadata": {"name": 7}}, "metadata.name: 7 is not a text (put it in quotes)"),
        ({**document(), "metadata": {"name": "a", "nmespace": "b"}}, "did you mean metadata.namespace?"),
        ({**document(), "sepc": {}}, "sepc: unknown field; did you mean spec?"),
        ({**document(), "spec": {}}, "spec.model: is required"),
        ({**document(), "spec": "x"}, "spec: 'x' is not a map of fields"),
    ],
)
def test_what_stands_around_the_spec_is_checked_too(found, sentence):
    assert any(sentence in line for line in said(found)), said(found)


def test_a_line_break_at_the_end_is_not_overlooked():
    found = document({"model": {"uri": "hf://a/b", "revision": "main\n"}})
    assert said(found) == ["spec.model.revision: 'main\\n' is not a branch, tag or commit"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), below, max_size=3)
    ),
    max_leaves=6,
)
sections = [
    "model",
    "runtime",
    "gpu",
    "scaling",
    "coldStart",
    "cache",
    "routing",
    "rollout",
    "access",
    "replicas",
]
field_names = st.sampled_from(
    [
        "uri",
        "env",
        "count",
        "product",
        "nodeSelector",
        "tolerations",
        "min",
        "max",
        "heartbeat",
        "type",
        "name",
    ]
)


@given(
    st.dictionaries(
        st.sampled_from(sections),
        json_values | st.dictionaries(field_names, json_values, max_size=3),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["name", "namespace", "uid", "generation"]), json_values, max_size=3),
)
def test_no_data_makes_the_parser_fail_in_any_other_way(spec, metadata):
    found = document(spec)
    found["metadata"] |= metadata
    said(found)


@given(json_values)
def test_no_document_makes_the_parser_fail_in_any_other_way(found):
    assert said(found)


def test_an_object_of_the_api_server_is_accepted_with_its_metadata_and_status():
    found = document(status={"state": "Asleep", "anything": 1})
    found["metadata"] |= {
        **{"uid": "u-1", "generation": 7, "namespace": "team", "labels": {"a": "b"}},
        **{"managedFields": [], "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "1"},
    }
    model = api.parse(found)
    assert (model.key, model.uid, model.generation) == ("team/chat", "u-1", 7)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("250ms", 0.25), ("1m30s500ms", 90.5), ("99999h", 359_996_400)],
)
def test_a_duration_knows_its_seconds(text, seconds):
    assert Duration(text).seconds == pytest.approx(seconds)
    assert Duration(text) == text


@pytest.mark.parametrize("text", ["", "0s", "10", "s", "1.5s", "-1s", "1d", "1s ", "01s", "1s1s1s1s", "١s"])
def test_what_is_not_a_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        Duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1Mi", 1 << 20), ("24Gi", 24 << 30), ("1Ti", 1 << 40), ("80G", 80 * 10**9), ("5M", 5_000_000)],
)
def test_a_quantity_knows_its_bytes(text, size):
    assert Quantity(text).bytes == size


@pytest.mark.parametrize("text", ["", "24", "24GB", "0Gi", "1.5Gi", "Gi", "24gi", "-1Gi"])
def test_what_is_not_a_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        Quantity(text)
