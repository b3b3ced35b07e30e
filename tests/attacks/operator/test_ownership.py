"""Objects that are not a model's: the operator neither changes nor deletes them, and names them."""

import asyncio

from api_server import model, until

from wisp_operator.api import parse
from wisp_operator.cluster.access.api_server import Api, ApiError
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.desired.service import service

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "redis"},
    "spec": {"selector": {"app": "redis"}, "ports": [{"port": 6379}]},
}
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "redis"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "redis"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
    },
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "redis-cache"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "redis"},
    "spec": {
        "selector": {"matchLabels": {"app": "redis"}},
        "template": {
            "metadata": {"labels": {"app": "redis"}},
            "spec": {"containers": [{"name": "redis", "image": "redis"}]},
        },
    },
}
STRANGERS = (SERVICE, POLICY, CLAIM, DEPLOYMENT)


def contents(server, namespace, manifests=STRANGERS):
    """What may not change of these objects: their spec, labels and owners."""
    live = [server.get(part["kind"], part["metadata"]["name"], namespace) for part in manifests]
    assert all(live), "an object of a stranger is gone"
    return [
        (part["spec"], part["metadata"].get("labels"), part["metadata"].get("ownerReferences"))
        for part in live
    ]


def labelled(manifest, name):
    """The manifest as a stranger may write it: with the label that the operator watches."""
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {"wisp.dev/model": name}}}


def is_settled(server, name, namespace):
    """Whether the model has a status that says what it can be."""
    return lambda: server.condition(name, "Ready", namespace).get("reason")


def test_objects_of_the_same_name_stay_as_they_are_and_outlive_the_model(server, operator, namespace):
    server.apply(*STRANGERS, namespace=namespace)
    before = contents(server, namespace)
    taker = model("redis", replicas=1, model={"uri": "hf://acme/none"}, cache={"type": "PVC"})
    server.apply(taker, model("neighbour"), namespace=namespace)
    until(lambda: server.condition("redis", "Ready", namespace).get("reason") == "NameTaken")
    message = server.condition("redis", "Ready", namespace)["message"]
    assert "redis" in message
    assert server.condition("redis", "Degraded", namespace)["status"] == "True"
    assert server.status("redis", namespace)["state"] == "Failed"
    assert contents(server, namespace) == before
    until(lambda: server.condition("neighbour", "Ready", namespace).get("reason") == "ScaledToZero")

    def events():
        found = server.get("events.events.k8s.io", namespace=namespace)
        return [event["reason"] for event in found if event["regarding"]["name"] == "redis"]

    until(lambda: "NameTaken" in events())
    assert events().count("NameTaken") == 1
    server.kubectl("delete", "imodel", "redis", "-n", namespace, "--timeout=20s")
    server.apply(model("after"), namespace=namespace)  # the collector has seen the deletion by then
    until(is_settled(server, "after", namespace))
    assert contents(server, namespace) == before


def test_a_label_does_not_make_an_object_the_models(server, operator, namespace):
    strangers = [labelled(part, "redis") for part in (SERVICE, POLICY, DEPLOYMENT)]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "backup", "labels": {"wisp.dev/model": "redis"}},
        "spec": {
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "backup", "image": "backup"}]}
            }
        },
    }
    server.apply(*strangers, job, namespace=namespace)
    before = contents(server, namespace, [*strangers, job])
    server.apply(model("redis", replicas=1), namespace=namespace)
    until(lambda: server.condition("redis", "Ready", namespace).get("reason") == "NameTaken")
    assert contents(server, namespace, [*strangers, job]) == before


def test_the_other_children_are_made_and_the_name_is_taken_once_it_is_free(server, operator, namespace):
    server.apply(SERVICE, namespace=namespace)
    server.apply(model("redis", replicas=1), namespace=namespace)
    until(lambda: server.condition("redis", "Ready", namespace).get("reason") == "NameTaken")
    assert "Service redis" in server.condition("redis", "Ready", namespace)["message"]
    assert server.get("networkpolicy", "redis", namespace)
    # A pod that nobody could reach is not started.
    assert server.get("deployment", "redis", namespace)["spec"]["replicas"] == 0
    server.kubectl("delete", "service", "redis", "-n", namespace)
    until(lambda: server.condition("redis", "Ready", namespace).get("reason") != "NameTaken")
    until(lambda: server.get("deployment", "redis", namespace)["spec"]["replicas"] == 1)


def test_a_model_called_kubernetes_does_not_touch_the_api_servers_service(server, operator, namespace):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes"}}
    before = server.get("service", "kubernetes")
    refused = server.apply(model("kubernetes"), check=False)
    if refused.returncode == 0:
        until(lambda: server.condition("kubernetes", "Ready").get("reason") == "NameTaken")
        server.kubectl("delete", "imodel", "kubernetes")
    assert server.get(service["kind"], "kubernetes")["spec"] == before["spec"]


def test_a_model_made_anew_gets_its_children_back(server, operator, namespace):
    server.apply(model("chat"), namespace=namespace)
    until(lambda: server.condition("chat", "Ready", namespace).get("reason") == "ScaledToZero")
    old = server.get("imodel", "chat", namespace)["metadata"]["uid"]
    server.kubectl("delete", "imodel", "chat", "-n", namespace)
    server.apply(model("chat"), namespace=namespace)

    def is_whole_again():
        new = server.get("imodel", "chat", namespace)["metadata"]["uid"]
        assert new != old
        assert server.condition("chat", "Ready", namespace).get("reason") != "NameTaken"
        children = [
            server.get(kind, "chat", namespace) for kind in ("deployment", "service", "networkpolicy")
        ]
        return all(child and child["metadata"]["ownerReferences"][0]["uid"] == new for child in children)

    until(is_whole_again)


def test_an_object_that_appears_between_looking_and_writing_stays_as_it_is(server, namespace, monkeypatch):
    """The writer alone, without the look before: the API server itself refuses."""
    default = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(default, str(server.kubeconfig))
    identity = {"namespace": namespace, "uid": "11111111-1111-1111-1111-111111111111"}
    ours = {
        name: parse({**model(name), "metadata": {"name": name, **identity}}) for name in ("redis", "gone")
    }
    seen_before = {"metadata": {"uid": "22222222-2222-2222-2222-222222222222"}}
    server.apply(SERVICE, namespace=namespace)
    before = contents(server, namespace, [SERVICE])

    async def attempt(name, over):
        api = Api(Metrics())
        try:
            await ClusterWriter(api, Metrics(), lambda: 10.0).apply(service(ours[name]), over)
        except ApiError as refusal:
            return refusal.code
        finally:
            await api.close()
        return 200

    assert asyncio.run(attempt("redis", None)) == 409  # made meanwhile
    assert asyncio.run(attempt("redis", seen_before)) in (409, 422)  # deleted and made anew by a stranger
    assert asyncio.run(attempt("gone", seen_before)) == 409  # deleted: nothing is made under an old name
    assert contents(server, namespace, [SERVICE]) == before
