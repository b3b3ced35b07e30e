"""The JSON of models and endpoints: defaults, unknown fields, errors that name the field."""

from __future__ import annotations

import json

import pytest

from wisp_gateway.discovery.snapshot import parse
from wisp_gateway.errors import DiscoveryError

FULL = {
    "namespace": "default", "name": "m", "servedName": "s", "created": 5, "state": "Waking", "reason": "r",
    "message": "x", "phase": "weights", "progress": 0.4, "routing": "LeastLoad", "targetConcurrency": 3,
    "coldStart": {"mode": "Reject", "maxWaitSeconds": 1, "heartbeatSeconds": 2, "queueLimit": 3},
    "drainTimeoutSeconds": 60, "apiKeysFile": "/k", "somethingNewer": 1,
    "endpoints": [{"id": "e", "address": "[::1]:80", "ready": True, "draining": True}],
}  # fmt: skip


def test_a_complete_model_is_read_and_unknown_fields_are_ignored():
    model = parse(json.dumps({"models": [FULL]}))["default/m"]
    assert (model.served_name, model.phase, model.progress, model.routing) == (
        "s",
        "weights",
        0.4,
        "LeastLoad",
    )
    assert (model.cold_start.mode, model.cold_start.max_wait_s, model.cold_start.queue_limit) == (
        "Reject",
        1,
        3,
    )
    assert (model.endpoints[0].address, model.endpoints[0].draining) == ("[::1]:80", True)
    assert model.api_keys_file == "/k"


def test_unknown_values_of_a_newer_operator_get_defaults():
    newer = {**FULL, "state": "Hibernating", "routing": "RoundRobin", "coldStart": {"mode": "Queue"}}
    models = parse(json.dumps({"models": [newer, {**FULL, "name": "other"}]}))
    assert models["default/other"].routing == "LeastLoad"
    model = models["default/m"]
    assert (model.state, model.routing, model.cold_start.mode) == ("Waking", "PrefixAware", "Hold")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": 3}, "models[0].state: expected a string"),
        ({"name": ""}, "models[0].name: expected a string"),
        ({"coldStart": {"mode": 1}}, "models[0].coldStart.mode: expected a string, found 1"),
        ({"coldStart": []}, "models[0].coldStart: expected an object"),
        ({"targetConcurrency": 0}, "models[0].targetConcurrency: expected a whole number of at least 1"),
        ({"targetConcurrency": True}, "models[0].targetConcurrency: expected a whole number"),
        ({"endpoints": [{"id": "e", "address": "nowhere"}]}, "endpoints[0].address: expected host:port"),
        (
            {"endpoints": [{"id": "e", "address": "a:1", "ready": 1}]},
            "endpoints[0].ready: expected true or false",
        ),
        ({"endpoints": {}}, "models[0].endpoints: expected a list"),
    ],
)
def test_validation_errors_name_the_field(change, message):
    with pytest.raises(DiscoveryError) as caught:
        parse(json.dumps({"models": [{**FULL, **change}]}))
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 5}', '{"models": [5]}', b"\xff"])
def test_text_that_is_no_snapshot_is_refused(text):
    with pytest.raises((DiscoveryError, UnicodeDecodeError)):
        parse(text)
