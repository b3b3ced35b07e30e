"""Webhooks of a cluster that refuse, are away, or hang: shown on the model within 5 s, and over with them."""

import socket
import time
from contextlib import contextmanager

import pytest
from api_server import free_port, model, until
from machine_pace import pace

SHOWN_S = 5.0


def hook(namespace, port, group, resource):
    """A webhook for one kind in one namespace, at a port of this machine."""
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}
    return {
        "name": f"{resource}.{namespace}.test",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }


@contextmanager
def webhook(server, namespace, port):
    """A webhook for NetworkPolicies; another, which is away, shows when the server has read them."""
    name = f"{namespace}.test"
    hooks = [hook(namespace, port, "networking.k8s.io", "networkpolicies")]
    hooks.append(hook(namespace, free_port(), "", "configmaps"))
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    server.apply({**kind, "metadata": {"name": name}, "webhooks": hooks})
    try:
        trial = ("create", "configmap", "trial", "-n", namespace, "--dry-run=server")
        until(lambda: server.kubectl(*trial, check=False).returncode)
        yield
    finally:
        server.kubectl("delete", "validatingwebhookconfiguration", name)


@pytest.fixture
def silent_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield listener.getsockname()[1]


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_webhook_that_gives_no_answer_is_named_and_blocks_nothing_else(
    server, operator, namespace, silent_port, is_silent
):
    with webhook(server, namespace, silent_port if is_silent else free_port()):
        with pace() as machine:
            server.apply(model("chat"), namespace=namespace)
            began = time.monotonic()
            until(lambda: server.condition("chat", "Ready", namespace).get("reason") == "ChildRefused")
            took_s = time.monotonic() - began
        assert took_s < SHOWN_S * machine.stretch
        message = server.condition("chat", "Ready", namespace)["message"]
        assert "NetworkPolicy chat" in message
        assert "webhook" in message
        assert server.get("deployment", "chat", namespace)["spec"]["replicas"] == 0
        assert server.get("service", "chat", namespace)
        until(lambda: "ChildRefused" in reasons_of_events(server, namespace))
    until(lambda: server.status("chat", namespace).get("state") == "Asleep")


def reasons_of_events(server, namespace):
    return {event["reason"] for event in server.get("events.events.k8s.io", namespace=namespace)}


def test_describe_lists_the_events_of_a_model_in_their_order(server, operator, namespace):
    reasons = []
    for number in range(1, 9):
        server.apply(model("chat", suspend=bool(number % 2)), namespace=namespace)
        reasons.append("Suspended" if number % 2 else "ScaledToZero")
        until(lambda: server.condition("chat", "Ready", namespace).get("reason") == reasons[-1])

    def listed():
        described = server.kubectl("describe", "imodel", "chat", "-n", namespace).rpartition("Events:")[2]
        lines = [line.split()[1] for line in described.splitlines()[3:] if line.strip()]
        return [reason for reason in lines if reason in ("Suspended", "ScaledToZero")]

    until(lambda: len(listed()) >= len(reasons))
    assert listed() == reasons
