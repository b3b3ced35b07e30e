"""Rights that a tenant or a stranger's pod does not have, against a real API server."""

import json
import urllib.error
import urllib.request

import pytest
from api_server import model, until


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"model": {"uri": "file:///var/lib/kubelet/pods"}}, "policy.fileDirectories"),
        (
            {
                "model": {"uri": "oci://evil.example/code:1"},
                "runtime": {"env": [{"name": "PYTHONPATH", "value": "/models/thief"}]},
            },
            "policy.env ",
        ),
        (
            {
                "model": {"uri": "hf://acme/m"},
                "runtime": {
                    "env": [
                        {"name": "HF_ENDPOINT", "value": "http://attacker.example"},
                        {"name": "HF_TOKEN", "secretRef": {"name": "database", "key": "password"}},
                    ]
                },
            },
            "policy.envSecretRefs",
        ),
        (
            {
                "model": {"uri": "hf://acme/m"},
                "podTemplate": {
                    "labels": {"app": "checkout"},
                    "annotations": {"iam.amazonaws.com/role": "admin"},
                    "priorityClassName": "system-node-critical",
                },
            },
            "policy.priorityClasses",
        ),
    ],
    ids=["directory of a node", "code from an image", "any Secret", "pods of others"],
)
def test_a_model_that_asks_for_more_has_no_pods_and_its_neighbour_has(
    server, namespace, start_operator, spec, value
):
    operator = start_operator("one", "--allow-file-below", "/srv/models")
    until(operator.leads)
    own = {"model": {"uri": "file:///srv/models/chat"}, "gpu": {"count": 0}, "replicas": 1}
    server.apply(
        model("thief", **{"gpu": {"count": 0}, "replicas": 1, **spec}),
        model("chat", **own),
        namespace=namespace,
    )
    refused = until(lambda: server.condition("thief", "Ready", namespace).get("message"))
    assert value in refused
    assert server.condition("thief", "Accepted", namespace)["reason"] == "NotAllowed"
    until(lambda: server.get("deployment", "chat", namespace))
    assert server.get("deployment", "thief", namespace) is None


def post(port, headers):
    report = {"waiting": 100000, "running": 0, "arrivals": 1, "idleSeconds": 0.0}
    body = {"gateway": "i-am-no-gateway", "models": {"prod/llama": report}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/demand",
        json.dumps(body).encode(),
        {"content-type": "application/json"} | headers,
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_demand_of_no_gateway_starts_no_pod(server, namespace, start_operator, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    operator = start_operator("one", "--pod-token-keys", str(keys))
    until(operator.leads)
    server.apply(
        model("llama", model={"uri": "pvc://m"}, gpu={"count": 0}, scaling={"max": 8}), namespace=namespace
    )
    until(lambda: server.get("deployment", "llama", namespace))
    for headers in ({}, {"x-wisp-gateway": "i-am-no-gateway", "x-wisp-token": "0" * 64}):
        assert post(operator.port, headers) == 401
    assert server.get("deployment", "llama", namespace)["spec"]["replicas"] == 0
    variables = server.get("deployment", "llama", namespace)["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]
    assert [variable["name"] for variable in variables].count("WISP_POD_TOKEN_SHA256") == 1


def test_the_name_of_the_api_servers_service_is_refused_at_apply(server):
    done = server.apply(model("kubernetes", model={"uri": "hf://acme/m"}), check=False)
    assert done.returncode != 0
    assert "Service of the API server itself" in done.stderr
    assert "selector" not in server.get("service", "kubernetes")["spec"]
