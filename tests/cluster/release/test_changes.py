"""Names that meet, names that change, specs that change at the wrong moment, and no operator at all."""

import json

import pytest
from kube import apply, get, kubectl, model, status, until
from namespaces import execute, make_namespace, put_weights
from release import CLIENTS, SYSTEM, answer, chat, pods_of, settled
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
        until(lambda namespace=namespace: not left(namespace), seconds=90)


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
    until(lambda: len(pods_of("operator")) == count, seconds=60)
    settled("operator")


@pytest.fixture
def no_operator(release):
    """Begin and end a time without any operator."""

    def none():
        operators(0)

    yield none
    operators(2)


def test_models_of_the_same_name_in_two_namespaces_each_answer(namespace):
    for place, served in ((NAMESPACE, "one"), (OTHER, "two")):
        apply(model("chat", model=TINY["model"] | {"servedName": served}, replicas=1), namespace=place)
    until(
        lambda: all(status("chat", place).get("state") == "Ready" for place in (NAMESPACE, OTHER)), seconds=60
    )
    for place, served in ((NAMESPACE, "one"), (OTHER, "two")):
        for code, found in (asks("chat", f"{place}/"), asks(served, "")):
            assert (code, found["model"]) == (200, served)
        url = f"/{place}/chat/v1/chat/completions"
        assert answer(url, chat(served))[0] == 200
    code, found = asks("chat", "")  # the older one keeps the bare name, the newer one says so
    assert (code, found["model"]) == (200, "one")


def test_a_renamed_model_answers_by_its_new_name_alone(namespace):
    apply(model("old", **TINY), namespace=NAMESPACE)
    assert until(lambda: asks("old")[0] == 200, seconds=60)
    kubectl("delete", "imodel", "old", "-n", NAMESPACE)
    apply(model("new", **TINY), namespace=NAMESPACE)
    until(lambda: asks("new")[0] == 200, seconds=60)
    code, found = asks("old")
    assert (code, found["error"]["code"]) == (404, "model_not_found")
    until(lambda: not [name for name in left(NAMESPACE) if "/old" in name], seconds=60)


@pytest.mark.parametrize("moment", ["asleep", "waking", "draining", "while no operator runs"])
def test_a_spec_changed_at_any_moment_is_the_one_that_answers(namespace, no_operator, moment):
    idle_after = "20s" if moment == "while no operator runs" else "2s"  # long enough to be seen ready
    apply(model("chat", **TINY, scaling={"idleAfter": idle_after}), namespace=NAMESPACE)
    until(lambda: is_asleep("chat", NAMESPACE))
    if moment != "asleep":
        ask_and_leave("chat")
    if moment == "draining":
        until(lambda: any(is_going(pod) for pod in get("pods", namespace=NAMESPACE)), seconds=60)
    if moment == "waking":
        until(lambda: status("chat", NAMESPACE)["state"] == "Waking", every=0.05)
    if moment == "while no operator runs":
        until(lambda: status("chat", NAMESPACE)["state"] == "Ready", seconds=60)
        no_operator()
    apply(model("chat", **TINY, runtime={"maxConcurrent": 5}, scaling={"min": 1}), namespace=NAMESPACE)
    if moment == "while no operator runs":
        operators(2)
    until(lambda: is_settled("chat"), seconds=90)
    code, found = asks("chat")
    assert (code, found["usage"]["completion_tokens"]) == (200, 4)
    arguments = get("pods", namespace=NAMESPACE)[0]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--max-concurrent") + 1] == "5"
    seen = status("chat", NAMESPACE)
    print(f"{moment}: {seen['state']}, generation {seen['observedGeneration']}")


def ask_and_leave(name):
    """Wake a model by a request whose answer is not read."""
    body = json.dumps(chat(f"{NAMESPACE}/{name}"))
    wake = (
        f"import http.client as h; h.HTTPConnection('wisp-gateway.{SYSTEM}.svc', timeout=1).request('POST', "
    )
    wake += f"'/v1/chat/completions', {body!r}, {{'content-type': 'application/json'}}); "
    wake += "import time; time.sleep(0.5)"
    execute(CLIENTS, "ask", "python3", "-c", wake)


def is_going(pod):
    return "deletionTimestamp" in pod["metadata"]


def is_settled(name):
    """Whether the newest spec was reconciled, and exactly one pod, of that spec, is ready."""
    found = get("inferencemodel", name, NAMESPACE)
    pods = get("pods", namespace=NAMESPACE)
    seen = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
    return seen and found["status"]["state"] == "Ready" and len(pods) == 1 and not is_going(pods[0])


def test_a_model_answers_and_is_collected_while_no_operator_runs(namespace, no_operator):
    apply(model("chat", **TINY, replicas=1), namespace=NAMESPACE)
    until(lambda: status("chat", NAMESPACE).get("state") == "Ready", seconds=60)
    no_operator()
    assert asks("chat")[0] == 200
    kubectl("delete", "imodel", "chat", "-n", NAMESPACE, "--timeout=20s")
    until(lambda: left(NAMESPACE) == [], seconds=90)
    assert until(lambda: asks("chat")[0] == 404)


def test_of_two_operators_one_writes(release, namespace):
    settled("operator")
    leader = until(lambda: release.leader() in release.operators() and release.leader(), seconds=60)
    follower = next(name for name in release.operators() if name != leader)
    before = {name: writes(release, name) for name in (leader, follower)}
    apply(*(model(f"chat-{n}", **TINY) for n in range(5)), namespace=NAMESPACE)
    until(lambda: all(is_asleep(f"chat-{n}", NAMESPACE) for n in range(5)))
    assert writes(release, leader) >= before[leader] + 15
    assert writes(release, follower) == before[follower]


def writes(release, pod):
    verbs = ("apply", "status", "event", "delete", "annotate")
    samples = release.metrics(pod).items()
    return sum(count for name, count in samples if any(f'verb="{verb}"' in name for verb in verbs))
