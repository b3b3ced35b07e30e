"""Names that meet, names that change, a spec that changes, and no operator at all."""

import pytest
from kube import apply, get, is_going, kubectl, model, status, until
from namespaces import make_namespace, put_weights
from release import SYSTEM, answer, chat, pods_of, settled
from tiny import write_tiny

NAMESPACE, OTHER = "wisp-changes", "wisp-changes-too"
TINY = {"model": {"uri": "pvc://weights/tiny"}}
CHILDREN = ("deployment", "service", "networkpolicy", "replicaset", "pods", "endpointslice")


@pytest.fixture(scope="module")
def namespaces(clients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(folder)
    for namespace in (NAMESPACE, OTHER):
        make_namespace(namespace)
        put_weights(namespace, tiny=folder)


@pytest.fixture
def namespace(namespaces):
    yield NAMESPACE
    for namespace in (NAMESPACE, OTHER):
        kubectl("delete", "imodel", "--all", "-n", namespace)
    for namespace in (NAMESPACE, OTHER):
        until(lambda namespace=namespace: not left(namespace))


def left(namespace):
    """Objects of models in a namespace."""
    return kubectl("get", ",".join(CHILDREN), "-n", namespace, "-o", "name").split()


def is_asleep(name, namespace):
    return status(name, namespace).get("state") == "Asleep"


def asks(name, namespace=f"{NAMESPACE}/"):
    """Ask the model for an answer: the HTTP status and the document."""
    name = f"{namespace}{name}"
    return answer("/v1/chat/completions", chat(name, max_tokens=4))


def operators(count):
    kubectl("scale", "deployment", "wisp-operator", "-n", SYSTEM, f"--replicas={count}")
    until(lambda: len(pods_of("operator")) == count)
    settled("operator")


@pytest.fixture
def no_operator(release):
    """Begin a time without any operator; it ends with the test."""

    def none():
        operators(0)

    yield none
    if get("deployment", "wisp-operator", SYSTEM)["spec"]["replicas"] == 0:
        operators(2)


def test_models_of_the_same_name_in_two_namespaces_each_answer(namespace):
    for place, served in ((NAMESPACE, "one"), (OTHER, "two")):
        apply(model("chat", model=TINY["model"] | {"servedName": served}, replicas=1), namespace=place)
    until(lambda: all(status("chat", place).get("state") == "Ready" for place in (NAMESPACE, OTHER)))
    for place, served in ((NAMESPACE, "one"), (OTHER, "two")):
        for code, found in (asks("chat", f"{place}/"), asks(served, "")):
            assert (code, found["model"]) == (200, served)
        url = f"/{place}/chat/v1/chat/completions"
        assert answer(url, chat(served))[0] == 200
    code, found = asks("chat", "")  # the older one keeps the bare name, the newer one says so
    assert (code, found["model"]) == (200, "one")


def test_a_renamed_model_answers_by_its_new_name_alone(namespace):
    apply(model("old", **TINY), namespace=NAMESPACE)
    until(lambda: asks("old")[0] == 200)
    kubectl("delete", "imodel", "old", "-n", NAMESPACE)
    apply(model("new", **TINY), namespace=NAMESPACE)
    until(lambda: asks("new")[0] == 200)
    code, found = asks("old")
    assert (code, found["error"]["code"]) == (404, "model_not_found")
    until(lambda: not [name for name in left(NAMESPACE) if "/old" in name])


def test_a_spec_changed_while_a_model_sleeps_is_the_one_that_answers(namespace):
    """Waking or draining: ../operator/test_many.py; while no operator runs: ../operator/test_leader.py."""
    apply(model("chat", **TINY, scaling={"idleAfter": "2s"}), namespace=NAMESPACE)
    until(lambda: is_asleep("chat", NAMESPACE))
    apply(model("chat", **TINY, runtime={"maxConcurrent": 5}, scaling={"min": 1}), namespace=NAMESPACE)
    until(lambda: is_settled("chat"))
    code, found = asks("chat")
    assert (code, found["usage"]["completion_tokens"]) == (200, 4)
    arguments = get("pods", namespace=NAMESPACE)[0]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--max-concurrent") + 1] == "5"


def is_settled(name):
    """Whether the newest spec was reconciled, and exactly one pod, of that spec, is ready."""
    found = get("inferencemodel", name, NAMESPACE)
    pods = get("pods", namespace=NAMESPACE)
    seen = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
    return seen and found["status"]["state"] == "Ready" and len(pods) == 1 and not is_going(pods[0])


def test_a_model_answers_and_is_collected_while_no_operator_runs(namespace, no_operator):
    apply(model("chat", **TINY, replicas=1), namespace=NAMESPACE)
    until(lambda: status("chat", NAMESPACE).get("state") == "Ready")
    no_operator()
    assert asks("chat")[0] == 200
    kubectl("delete", "imodel", "chat", "-n", NAMESPACE, "--timeout=120s")
    until(lambda: left(NAMESPACE) == [])
    until(lambda: asks("chat")[0] == 404)
