"""Warnings of ``wisp up`` about who may use its models."""

from pathlib import Path

import pytest

from wisp_operator import api
from wisp_operator.local.admission import (
    KeysMissing,
    ServedNameTaken,
    access_warning,
    require_keys,
    require_own_names,
)


def model(name, *, is_protected=False, **served):
    access = {"access": {"apiKeySecretRef": {"name": "keys"}}} if is_protected else {}
    return api.parse(
        {
            "apiVersion": api.API_VERSION,
            "kind": api.KIND,
            "metadata": {"name": name},
            "spec": {"model": {"uri": "hf://org/name", **served}, "gpu": {"count": 0}, **access},
        }
    )


@pytest.mark.parametrize(
    ("host", "exposed"),
    [
        ("127.0.0.1", None),
        ("localhost", None),
        ("::1", None),
        ("0.0.0.0", "default/open"),
        ("::", "default/open"),
        ("192.168.1.7", "default/open"),
        ("", "default/open"),
    ],
)
def test_a_gateway_that_others_reach_is_warned_of_where_models_ask_for_no_key(host, exposed):
    warning = access_warning(host, [model("closed", is_protected=True), model("open")], None)
    assert (f"may use {exposed}, without a key" in warning) if exposed else warning == ""
    assert access_warning(host, [model("closed", is_protected=True)], None) == ""


def test_keys_that_leave_models_open_are_warned_of_with_the_remedy():
    closed, unguarded = model("closed", is_protected=True), [model("open"), model("open2")]
    warning = access_warning("127.0.0.1", [closed, *unguarded], Path("keys"))
    assert "--api-keys keys: these models need no key all the same: default/open, default/open2." in warning
    assert "spec.access.apiKeySecretRef do: set it" in warning
    assert access_warning("127.0.0.1", [closed], Path("keys")) == ""
    assert "without a key" in access_warning("0.0.0.0", unguarded, Path("keys"))  # the more urgent one alone


def test_a_served_name_of_the_form_of_another_models_key_is_refused_with_one_that_is_not():
    require_own_names([model("tiny", servedName="Acme/tiny"), model("small", servedName="default/small")])
    with pytest.raises(ServedNameTaken, match="as in 'Acme/Tiny', or no slash"):
        require_own_names([model("tiny", servedName="acme/tiny")])


def test_a_protected_model_needs_a_key_that_the_gateway_can_read(tmp_path):
    file = tmp_path / "keys"
    closed = model("closed", is_protected=True)
    file.write_text("carol:sk-carol rpm=thirty\n")
    with pytest.raises(KeysMissing, match="line 1: 'rpm' must be an integer such as 600") as caught:
        require_keys(closed, file)
    assert "sk-carol" not in str(caught.value)
    file.write_text("carol:sk-carol rpm=thirty\ndan:sk-dan rpm=30\n")
    require_keys(closed, file)
    require_keys(model("open"), None)
