"""Many models, specs that change at any moment, an API server that goes away.

Models that are renamed, or share a name: ../release/test_changes.py.
"""

import subprocess
import time
from pathlib import Path

import pytest
from kube import NODE_RUN, apply, at_rest, get, has_state, is_going, kubectl, model, moments, status, until

COUNT = 100
RESTART = Path(__file__).parents[1] / "node/restart.sh"


def states(namespace):
    return [found.get("status", {}).get("state") for found in get("inferencemodel", namespace=namespace)]


def test_a_hundred_models_at_once_are_all_reconciled(start_operator, namespace):
    operator = start_operator()
    until(operator.leads)
    idle_mib, before = operator.rss_mib(), operator.writes()
    begun = time.monotonic()
    apply(*(model(f"chat-{i}") for i in range(COUNT)), namespace=namespace)
    until(lambda: states(namespace) == ["Asleep"] * COUNT, every=0.5)
    took_s = time.monotonic() - begun
    calls = (at_rest(operator.writes, seconds=3) - before) / COUNT
    print(f"{COUNT} models: {took_s:.1f} s from kubectl apply to the last status, {calls:.2f} writes a model")
    print(f"memory: {idle_mib:.0f} MiB idle, {operator.rss_mib():.0f} MiB with {COUNT} models")
    print({name: n for name, n in operator.metrics().items() if "api_calls" in name or "seconds" in name})
    assert calls <= 6  # Deployment, Service, NetworkPolicy, status, Event; one more after a lost race
    assert operator.rss_mib() < 200


def test_a_spec_changed_while_waking_asks_for_no_more_pods(operator, namespace):
    slow = {"env": [{"name": "FAKE_READY_AFTER", "value": "4s"}]}
    apply(model("chat", scaling={"max": 4}, runtime=slow), namespace=namespace)
    until(lambda: states(namespace) == ["Asleep"])
    assert operator.ask(f"{namespace}/chat") == 204
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
    with moments("pods", namespace) as pods, moments("inferencemodels", namespace) as models:
        assert operator.ask(f"{namespace}/chat") == 204
        until(lambda: any(map(has_state("Waking"), models)))
        if moment == "draining":
            until(lambda: any(map(has_state("Ready"), models)) and any(map(is_going, pods)))
    apply(model("chat", replicas=1, runtime={"maxConcurrent": 5}), namespace=namespace)
    until(lambda: states(namespace) == ["Ready"])
    until(lambda: [concurrency(pod) for pod in get("pods", namespace=namespace)] == ["5"])


def concurrency(pod):
    """The value of a flag of the pod's runtime, which its spec names."""
    arguments = pod["spec"]["containers"][0]["args"]
    return arguments[arguments.index("--max-concurrent") + 1] if "--max-concurrent" in arguments else ""


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
    until(lambda: kubectl("get", "--raw", "/readyz", check=False).returncode == 0)
    until(operator.leads)
    apply(model("chat", replicas=2), namespace=namespace)
    until(lambda: status("chat", namespace).get("readyReplicas") == 2)
    assert operator.read("/livez") == "ok\n"
