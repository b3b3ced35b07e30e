"""Addresses for Services, of which a cluster has few: a tenant's models take none."""

from api_server import model, until


def address_of(server, name, namespace):
    return (server.get("service", name, namespace) or {"spec": {}})["spec"].get("clusterIP")


def earlier_service(server, name, namespace):
    """The Service of a model as earlier versions made it, with an address."""
    found = server.get("inferencemodel", name, namespace)
    owner = {"apiVersion": found["apiVersion"], "kind": found["kind"], "name": name, "controller": True}
    owner["uid"] = found["metadata"]["uid"]
    labels = {"wisp.dev/model": name}
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"type": "ClusterIP", "selector": labels, "ports": ports},
    }


def test_models_take_no_address_and_give_one_up_that_they_had(server, namespace, start_operator):
    """While a model has pods it keeps its address: tests/operator/cluster/test_service_address.py."""
    own = {"model": {"uri": "pvc://m"}}
    server.apply(model("old", replicas=0, **own), namespace=namespace)
    server.apply(earlier_service(server, "old", namespace), namespace=namespace)
    assert address_of(server, "old", namespace) not in (None, "None")
    until(start_operator("one").leads)
    server.apply(*(model(f"m{number}", **own) for number in range(20)), namespace=namespace)
    until(lambda: len(server.get("service", namespace=namespace)) == 21)
    until(lambda: address_of(server, "old", namespace) == "None")
    assert {address_of(server, f"m{number}", namespace) for number in range(20)} == {"None"}
    until(lambda: server.status("old", namespace).get("state") == "Suspended")
