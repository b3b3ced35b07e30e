"""Warnings of ``wisp up`` about who may use its models."""

import pytest

from wisp_operator import api
from wisp_operator.local.admission import exposure_warning, holds_keys


def model(name, *, is_protected=False):
    access = {"access": {"apiKeySecretRef": {"name": "keys"}}} if is_protected else {}
    return api.parse(
        {
            "apiVersion": api.API_VERSION,
            "kind": api.KIND,
            "metadata": {"name": name},
            "spec": {"model": {"uri": "hf://org/name"}, "gpu": {"count": 0}, **access},
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
    warning = exposure_warning(host, [model("closed", is_protected=True), model("open")])
    assert (f"may use {exposed}, without a key" in warning) if exposed else warning == ""
    assert exposure_warning(host, [model("closed", is_protected=True)]) == ""


@pytest.mark.parametrize(
    ("text", "holds"),
    [("", False), ("# chat:x\n\n", False), ("chat:\n", False), ("k\n", True), ("a:k", True)],
)
def test_a_file_of_keys_has_some_as_the_gateway_reads_them(tmp_path, text, holds):
    file = tmp_path / "keys"
    file.write_text(text)
    assert holds_keys(file) == holds
