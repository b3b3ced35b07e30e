"""Bare names over all InferenceModels of a cluster: grants, refusals in words, and a new leader's memory."""

import pytest
from recording_cluster import ANY_FILE

from wisp_operator.api import parse
from wisp_operator.cluster.reconcile import model_names
from wisp_operator.cluster.reconcile.model_names import ModelNames
from wisp_operator.core.access.policy import Policy


class Cluster:
    """InferenceModels by key, and one operator that writes what it decides into their statuses."""

    def __init__(self):
        self.bodies, self.now = {}, 1000.0
        self.names = ModelNames(self, ANY_FILE)

    def models(self):
        return list(self.bodies)

    def model(self, key):
        return self.bodies.get(key)

    def put(self, key, served=None, created="2026-01-01T00:00:00Z"):
        namespace, _, name = key.partition("/")
        status = self.bodies.get(key, {}).get("status", {})
        source = {"uri": "file:///srv", **({"servedName": served} if served else {})}
        self.bodies[key] = {
            "apiVersion": "wisp.dev/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
            "spec": {"model": source},
            "status": status,
        }
        return self.decide(key)

    def drop(self, key):
        del self.bodies[key]
        self.names.forget(key)

    def decide(self, key, *pod_names):
        body = self.bodies[key]
        decision = self.names.grant(parse(body), body, pod_names)
        body["status"] = {"names": list(decision.names), "refusedNames": list(decision.refused)}
        return decision


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(model_names.time, "monotonic", lambda: cluster.now)
    return cluster


def test_a_second_model_gets_the_sentence_and_the_first_keeps_the_name(cluster):
    assert cluster.put("prod/llama").names == ("llama",)
    second = cluster.put("tenant-b/x", "llama", "2026-02-01T00:00:00Z")
    assert second.names == ("x",)
    assert "'llama' is the name of a model of another namespace." in second.refusal
    assert "tenant-b/x" in second.refusal
    assert "prod" not in second.refusal  # the tenant may not see it
    beside = cluster.put("prod/y", "llama", "2026-02-01T00:00:00Z")
    assert "is the name of prod/llama." in beside.refusal
    assert cluster.decide("prod/llama").refusal == ""


def test_an_older_model_takes_no_name_by_renaming_itself_even_from_a_new_leader(cluster):
    cluster.put("tenant-b/x", created="2025-01-01T00:00:00Z")
    cluster.put("prod/llama")
    cluster.bodies["tenant-b/x"]["spec"]["model"]["servedName"] = "llama"  # while no operator runs
    cluster.names = ModelNames(cluster, ANY_FILE)
    assert "another namespace" in cluster.decide("tenant-b/x").refusal
    assert cluster.decide("prod/llama").names == ("llama",)


def test_a_recreated_model_has_its_name_back_and_a_stranger_waits(cluster):
    cluster.put("prod/llama")
    cluster.put("tenant-b/x", "llama", "2026-02-01T00:00:00Z")
    cluster.drop("prod/llama")
    cluster.now += 30
    assert "is gone; it is kept for that namespace for 10 minutes" in cluster.decide("tenant-b/x").refusal
    assert cluster.put("prod/llama", created="2026-03-01T00:00:00Z").names == ("llama",)
    cluster.now += 1
    cluster.drop("prod/llama")
    cluster.now += 601
    decision = cluster.decide("tenant-b/x")
    assert (decision.names, decision.refusal) == (("llama", "x"), "")
    assert cluster.put("prod/llama", created="2026-04-01T00:00:00Z").names == ()


def test_a_new_leader_keeps_a_refused_stranger_waiting(cluster):
    cluster.put("prod/llama")
    cluster.put("tenant-b/x", "llama", "2026-02-01T00:00:00Z")
    del cluster.bodies["prod/llama"]
    cluster.names = ModelNames(cluster, ANY_FILE)
    assert cluster.decide("tenant-b/x").refusal
    cluster.now += 601
    assert cluster.decide("tenant-b/x").names == ("llama", "x")


def test_a_model_that_policy_refuses_holds_no_name_though_it_is_the_oldest(cluster):
    cluster.put("tenant-b/gpt", created="2025-01-01T00:00:00Z")
    cluster.bodies["tenant-b/gpt"]["status"] = {}  # as the refusal leaves it
    cluster.put("prod/x")
    cluster.bodies["prod/x"]["spec"]["model"] = {"uri": "hf://org/name", "servedName": "gpt"}
    cluster.names = ModelNames(cluster, Policy())
    assert cluster.decide("prod/x").names == ("gpt", "x")


def test_a_model_that_policy_refuses_from_now_on_gives_its_name_up_as_a_deleted_one_does(cluster):
    cluster.put("tenant-b/gpt")
    cluster.names = ModelNames(cluster, Policy(file_directories=("/srv",)))
    cluster.decide("tenant-b/gpt")
    cluster.bodies["tenant-b/gpt"]["spec"]["model"]["uri"] = "file:///etc"
    cluster.bodies["tenant-b/gpt"]["status"] = {}
    cluster.now += 30
    assert "is gone" in cluster.put("prod/x", "gpt").refusal
    cluster.now += 601
    assert cluster.decide("prod/x").names == ("gpt", "x")


@pytest.mark.parametrize(
    ("served", "names", "is_refused"),
    [
        (None, ("x",), False),
        ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", "x"), False),
        ("prod/llama", ("x",), True),  # not even while there is no such model
        ("tenant-b/x", ("x",), False),  # its own
    ],
)
def test_a_served_name_like_a_models_key_is_none(cluster, served, names, is_refused):
    decision = cluster.put("tenant-b/x", served)
    assert (decision.names, "of that namespace and name" in decision.refusal) == (names, is_refused)


def test_a_model_that_renames_itself_to_a_free_name_has_it_at_once(cluster):
    cluster.put("prod/llama")
    assert cluster.put("tenant-b/x", "llama").refused == ("llama",)
    assert cluster.put("tenant-b/x", "zebra").names == ("x", "zebra")


def test_a_model_that_no_schema_checked_ends_nothing(cluster):
    cluster.put("prod/llama")
    cluster.bodies["odd/m"] = {
        "metadata": {"namespace": "odd", "name": "m"},
        "spec": [],
        "status": {"names": "llama", "refusedNames": 5},
    }
    cluster.now += 10
    assert cluster.decide("prod/llama").names == ("llama",)


def test_many_models_are_decided_without_reading_all_for_each(cluster):
    reads = []
    read = cluster.model
    cluster.model = lambda key: reads.append(key) or read(key)
    for number in range(100):
        cluster.put(f"team/m{number}")
    before = len(reads)
    for number in range(100):
        cluster.decide(f"team/m{number}")
    assert len(reads) - before <= 100


def test_a_tenant_who_renames_models_has_not_those_of_everybody_decided_anew(cluster):
    for number in range(50):
        cluster.put(f"many/m{number}")
    cluster.put("prod/llama")
    cluster.names.update = lambda: pytest.fail("decides every name")
    cluster.bodies["many/m1"]["spec"]["model"]["servedName"] = "new"
    assert cluster.decide("many/m1").names == ("m1", "new")
    assert cluster.put("many/one-more").names == ("one-more",)
    cluster.drop("many/m2")
    assert cluster.put("many/m2").names == ("m2",)


def test_a_refused_model_that_still_exists_keeps_its_name(cluster):
    cluster.put("prod/llama")
    cluster.names.forget("prod/llama")  # its policy refuses it
    assert cluster.put("other/x", "llama", "2026-02-01T00:00:00Z").names == ("x",)


def renamed(cluster, key, served):
    cluster.bodies[key]["spec"]["model"]["servedName"] = served


def test_a_changed_name_is_kept_until_every_pod_has_the_new_one(cluster):
    cluster.put("prod/llama", "alpha")
    renamed(cluster, "prod/llama", "beta")
    assert cluster.decide("prod/llama", "alpha", None).names == ("alpha", "beta", "llama")
    assert cluster.decide("prod/llama", "alpha", "beta").refused == ()
    assert cluster.decide("prod/llama", "beta").names == ("beta", "llama")
    assert "is gone; it is kept" in cluster.put("tenant-b/x", "alpha", "2026-02-01T00:00:00Z").refusal


def test_a_sleeping_model_has_its_new_name_at_once(cluster):
    cluster.put("prod/llama", "alpha")
    renamed(cluster, "prod/llama", "beta")
    assert cluster.decide("prod/llama").names == ("beta", "llama")


def test_a_new_leader_keeps_a_changed_name_until_it_has_seen_the_pods(cluster):
    cluster.put("prod/llama", "alpha")
    cluster.put("prod/other")
    renamed(cluster, "prod/llama", "beta")
    cluster.names = ModelNames(cluster, ANY_FILE)
    cluster.decide("prod/other")
    assert cluster.decide("prod/llama", "alpha").names == ("alpha", "beta", "llama")


def test_a_model_whose_pods_still_have_a_name_gives_it_to_a_neighbour_that_asks(cluster):
    """Blue and green change places while the rollout of either may be stuck."""
    cluster.put("prod/blue", "chat")
    cluster.put("prod/green", "next")
    renamed(cluster, "prod/blue", "old")
    assert "chat" in cluster.decide("prod/blue", "chat", None).names
    renamed(cluster, "prod/green", "chat")
    assert "chat" in cluster.decide("prod/green", "next").names
    assert cluster.decide("prod/blue", "chat", None).names == ("blue", "old")
