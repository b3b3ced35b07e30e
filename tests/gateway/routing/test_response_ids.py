"""Tags of pods in the ids of stored responses."""

from __future__ import annotations

import pytest

from wisp_gateway.routing.response_ids import pod_tag, tag_of


def test_each_pod_of_each_model_has_a_tag_of_its_own_and_the_same_everywhere():
    tags = {pod_tag(model, pod) for model in ("ns/a", "ns/b", "ns/a-0") for pod in ("0", "1", "0-0")}
    assert len(tags) == 9
    assert pod_tag("ns/a", "0") == "d63ae75d381f"  # ids outlive a gateway: the rule may not change


@pytest.mark.parametrize(
    ("response_id", "tag"),
    [
        ("resp_" + "0123456789ab" + "f" * 32, "0123456789ab"),
        ("resp_" + "f" * 32, None),  # given without a gateway
        ("resp_" + "0123456789AB" + "f" * 32, None),
        ("msg_" + "0123456789ab" + "f" * 32, None),
        ("resp_" + "0123456789ab" + "f" * 32 + "\n", None),
        ("", None),
    ],
)
def test_an_id_has_the_tag_of_its_pod(response_id, tag):
    assert tag_of(response_id) == tag
