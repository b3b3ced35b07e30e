"""Many models, many namespaces, names that change; and an API server that goes away."""

import subprocess
import time
from pathlib import Path

import pytest
from kube import NODE_RUN, apply, get, kubectl, model, status, until

COUNT = 100
RESTART = Path(__file__).parents[1] / "node/restart.sh"


def states(namespace):
    return [found.get("status", {}).get("state") for found in get("inferencemodel", namespace=namespace)]


def test_a_hundred_models_at_once_are_all_reconciled(operator, namespace):
    idle_mib, before = operator.rss_mib(), operator.writes()
    begun = time.monotonic()
    apply(*(model(f"chat-{i}") for i in range(COUNT)), namespace=namespace)
    until(lambda: states(namespace) == ["Asleep"] * COUNT, seconds=60, every=0.5)
    took_s = time.monotonic() - begun
    time.sleep(3)
    calls = (operator.writes() - before) / COUNT
    print(f"{COUNT} models: {took_s:.1f} s from kubectl apply to the last status, {calls:.2f} writes a model")
    print(f"memory: {idle_mib:.0f} MiB idle, {operator.rss_mib():.0f} MiB with {COUNT} models")
    print({name: n for name, n in operator.metrics().items() if "api_calls" in name or "seconds" in name})
    assert calls <= 6  # Deployment, Service, NetworkPolicy, status, Event; one more after a lost race
    assert operator.rss_mib() < 200


def test_models_of_the_same_name_in_two_namespaces_stay_apart(operator, namespace):
    kubectl("create", "namespace", f"{namespace[:50]}-2")
    try:
        apply(model("chat", replicas=1), namespace=namespace)
        apply(model("chat", suspend=True), namespace=f"{namespace[:50]}-2")
        until(lambda: states(namespace) == ["Ready"])
        until(lambda: states(f"{namespace[:50]}-2") == ["Suspended"])
        assert get("pods", namespace=f"{namespace[:50]}-2") == []
    finally:
        kubectl("delete", "namespace", f"{namespace[:50]}-2", "--wait=false")


def test_a_renamed_model_leaves_nothing_of_its_old_name(operator, namespace):
    apply(model("old", replicas=1), namespace=namespace)
    until(lambda: states(namespace) == ["Ready"])
    kubectl("delete", "imodel", "old", "-n", namespace)
    apply(model("new", replicas=1), namespace=namespace)
    until(lambda: states(namespace) == ["Ready"])
    for kind in ("deployment", "service", "networkpolicy"):
        until(lambda kind=kind: [o["metadata"]["name"] for o in get(kind, namespace=namespace)] == ["new"])


def test_a_spec_changed_while_waking_asks_for_no_more_pods(operator, namespace):
    slow = {"env": [{"name": "FAKE_READY_AFTER", "value": "4s"}]}
    apply(model("chat", scaling={"max": 4}, runtime=slow), namespace=namespace)
    until(lambda: states(namespace) == ["Asleep"])
    operator.ask(f"{namespace}/chat")
    until(lambda: get("pods", namespace=namespace))
    apply(model("chat", scaling={"max": 4}, runtime=slow | {"maxConcurrent": 5}), namespace=namespace)
    asked = set()
    until(
        lambda: (
            asked.add(get("deployment", "chat", namespace)["spec"]["replicas"])
            or states(namespace) == ["Ready"]
        )
    )
    assert asked == {1}


@pytest.mark.parametrize("moment", ["waking", "draining"])
def test_a_spec_changed_at_any_moment_converges(operator, namespace, moment):
    scaling = {"idleAfter": "2s"}
    slow = {"env": [{"name": "FAKE_READY_AFTER", "value": "3s"}]}
    apply(model("chat", scaling=scaling, runtime=slow), namespace=namespace)
    until(lambda: states(namespace) == ["Asleep"])
    operator.ask(f"{namespace}/chat")
    until(lambda: states(namespace) == ["Waking"])
    if moment == "draining":
        until(lambda: states(namespace) == ["Ready"])
        until(
            lambda: any(pod["metadata"].get("deletionTimestamp") for pod in get("pods", namespace=namespace))
        )
    apply(model("chat", replicas=1, runtime={"maxConcurrent": 5}), namespace=namespace)
    until(lambda: states(namespace) == ["Ready"])
    until(lambda: len(get("pods", namespace=namespace)) == 1)
    args = get("pods", namespace=namespace)[0]["spec"]["containers"][0]["args"]
    assert args[args.index("--max-concurrent") + 1] == "5"


def test_prefetch_makes_one_job_and_removes_it_with_the_setting(operator, namespace):
    spec = {"model": {"uri": "hf://acme/none"}, "cache": {"type": "PVC", "prefetch": True}}
    apply(model("chat", **spec), namespace=namespace)
    job = until(lambda: get("jobs", namespace=namespace))[0]
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["pull", "hf://acme/none"]
    assert get("pvc", "chat-cache", namespace)["spec"]["accessModes"] == ["ReadWriteOnce"]
    apply(model("chat", model=spec["model"], cache={"type": "PVC"}), namespace=namespace)
    until(lambda: get("jobs", namespace=namespace) == [])
    assert get("pvc", "chat-cache", namespace)  # what was paid for stays


@pytest.mark.skipif(not NODE_RUN.exists(), reason="restarts a component of tests/cluster/node")
def test_an_api_server_that_restarts_is_found_again(operator, namespace):
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: states(namespace) == ["Ready"])
    subprocess.run([str(RESTART), "apiserver"], check=True, timeout=60)
    until(lambda: kubectl("get", "--raw", "/readyz", check=False).returncode == 0, seconds=40)
    until(operator.leads, seconds=40)
    apply(model("chat", replicas=2), namespace=namespace)
    until(lambda: status("chat", namespace).get("readyReplicas") == 2, seconds=40)
    assert operator.read("/livez") == "ok\n"
