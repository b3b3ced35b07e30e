"""Served names across namespaces: the first holder keeps its name, and a gateway follows the operator."""

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress

import pytest
from api_server import free_port, model, until


@pytest.fixture
def stranger(server, namespace):
    """Another tenant's namespace."""
    name = f"{namespace}-stranger"
    server.kubectl("create", "namespace", name)
    yield name
    server.kubectl("delete", "namespace", name, "--wait=false", check=False)


@contextmanager
def gateway(server):
    """A gateway of the whole cluster; yields a call that returns the owner of each id in ``/v1/models``."""
    port = free_port()
    command = [sys.executable, "-m", "wisp_gateway", "--directory", "kubernetes", "--port", str(port)]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def owners():
        url = f"http://127.0.0.1:{port}/v1/models"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return {card["id"]: card["owned_by"] for card in json.loads(answer.read())["data"]}

    try:
        yield owners
    finally:
        process.terminate()
        process.wait(30)


def named(server, name, namespace):
    """Status and reason of the condition, and the names that are granted."""
    found = server.condition(name, "Named", namespace)
    return found.get("status"), found.get("reason"), server.status(name, namespace).get("names")


def test_a_name_stays_with_its_first_holder_through_renames_deletion_and_a_new_gateway(
    server, operator, namespace, stranger
):
    server.apply(model("thief"), namespace=stranger)  # the older of the two
    server.apply(model("llama"), namespace=namespace)
    until(lambda: named(server, "llama", namespace) == ("True", "NameHeld", ["llama"]))
    renamed = {"uri": "file:///srv", "servedName": "llama"}
    server.apply(model("thief", model=renamed), namespace=stranger)
    until(lambda: named(server, "thief", stranger) == ("False", "ServedNameTaken", ["thief"]))
    assert namespace not in server.condition("thief", "Named", stranger)["message"].split()
    with gateway(server) as owners:
        until(lambda: (owners() or {}).get("llama") == namespace)
        assert owners()[f"{stranger}/thief"] == stranger
        server.kubectl("delete", "imodel", "llama", "-n", namespace, "--timeout=20s")
        until(lambda: "llama" not in owners())
    with gateway(server) as owners:  # it has never seen the holder
        until(owners)
        assert "llama" not in owners()
        server.apply(model("llama"), namespace=namespace)
        until(lambda: owners().get("llama") == namespace)
    until(lambda: named(server, "llama", namespace) == ("True", "NameHeld", ["llama"]))
    assert named(server, "thief", stranger)[0] == "False"
    events = server.get("events.events.k8s.io", namespace=stranger)
    assert [event["reason"] for event in events].count("ServedNameTaken") == 1


def test_a_served_name_like_another_models_key_is_none(server, operator, namespace, stranger):
    asks = {"uri": "file:///srv", "servedName": f"{namespace}/absent"}
    server.apply(model("impostor", model=asks), namespace=stranger)
    until(lambda: named(server, "impostor", stranger) == ("False", "ServedNameTaken", ["impostor"]))
