"""A user's steps on a real cluster: apply the example, get an answer, let it sleep, wake it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from kube import apply, get, kubectl, status, until
from namespaces import make_namespace, put_weights
from release import CHART, CLIENTS, NAME, SYSTEM, answer, ask, chat, helm

EXAMPLE = Path(__file__).parents[3] / "docs/examples/smollm2.yaml"
PHASES = {"schedule", "pull", "import", "weights", "kernels", "firstToken"}
NAMESPACE = "wisp-journey"


@pytest.fixture(scope="module")
def example(clients, smollm2_dir):
    """The example of the front page, its weights from a claim instead of the hub; asleep."""
    make_namespace(NAMESPACE)
    put_weights(NAMESPACE, smollm2=smollm2_dir)
    found = yaml.safe_load(EXAMPLE.read_text())
    found["spec"]["model"]["uri"] = "pvc://weights/smollm2"
    apply(found, namespace=NAMESPACE)
    until(lambda: status("smollm2", NAMESPACE).get("state") == "Asleep")
    return NAMESPACE


def listed():
    return [card["id"] for card in answer("/v1/models")[1]["data"]]


@pytest.mark.model
def test_from_an_empty_cluster_to_a_first_answer(release, example, record):
    assert "kubectl apply" in release.notes or release.before is None
    until(lambda: listed() == ["smollm2"])
    began = time.monotonic()
    code, found = answer("/v1/chat/completions", chat("smollm2", max_tokens=16, temperature=0))
    took_s = time.monotonic() - began
    assert code == 200
    assert found["usage"]["completion_tokens"] > 0
    said = found["choices"][0]["message"]["content"]
    assert "hello" in said.lower()
    table = until(lambda: is_ready(kubectl("get", "imodel", "-n", example)))
    assert table[0].split() == ["NAME", "READY", "REPLICAS", "STATE", "REASON", "FIT", "COLD", "AGE"]
    assert table[1].split()[:6] == ["smollm2", "True", "1/1", "Ready", "Serving", "Fits"]
    until(lambda: set(status("smollm2", example)["coldStart"]["phases"]) == PHASES)
    current = status("smollm2", example)
    assert current["fit"]["weightsBytes"] > 200 << 20
    assert 0 < current["coldStart"]["lastSeconds"] < 2 * took_s + 10  # the operator may see it later
    assert current["url"] == f"http://wisp-gateway.wisp-system.svc/{example}/smollm2/v1"
    print(f"first answer after {took_s:.1f} s: {said!r}")
    print("\n".join(table))
    print(json.dumps(current["coldStart"]))
    record(
        "journey", install_s=round(release.took_s, 1), first_answer_s=round(took_s, 2), **current["coldStart"]
    )


def is_ready(text):
    """The table once the model is ready and its cold start is there; gateways do not wait for the first."""
    lines = text.splitlines()
    columns = lines[1].split()
    return lines if columns[1] == "True" and columns[6].replace(".", "").isdigit() else None


@pytest.mark.model
def test_an_idle_model_leaves_no_pod_and_its_next_client_gets_heartbeats(example, record):
    patch = {"spec": {"scaling": {"idleAfter": "2s"}, "coldStart": {"heartbeat": "300ms"}}}
    kubectl("patch", "imodel", "smollm2", "-n", example, "--type=merge", "-p", json.dumps(patch))
    until(lambda: status("smollm2", example)["state"] == "Asleep")
    until(lambda: get("pods", namespace=example) == [])
    until(lambda: status("smollm2", example)["replicas"] == 0)
    seen = []
    with ThreadPoolExecutor() as threads:
        request = chat("smollm2", stream=True, temperature=0)
        asking = threads.submit(ask, "/v1/chat/completions", request)
        while not asking.done():
            seen.append(listed())
        code, headers, lines = asking.result()
    assert all(names == ["smollm2"] for names in [listed(), *seen])
    assert (code, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    beats = [(at, line) for at, line in lines if line.startswith(":")]
    tokens = [(at, line) for at, line in lines if line.startswith("data: {")]
    assert len(beats) >= 3
    assert lines.index(beats[-1]) < lines.index(tokens[0])  # both may be read at one time
    assert 0.3 <= beats[0][0] < 10
    assert lines[-1][1] in ("data: [DONE]", "")
    print(f"{len(beats)} heartbeats from {beats[0][0]:.1f} s on: {sorted({line for _, line in beats})}")
    print(f"first token after {tokens[0][0]:.1f} s; /v1/models listed the model {len(seen)} times meanwhile")
    record("held_stream", heartbeats=len(beats), first_token_s=tokens[0][0], listed=len(seen))


def test_a_second_release_is_refused_with_the_name_of_the_first(release):
    said = helm("install", "other", str(CHART), "--namespace", CLIENTS, check=False)
    assert f"has a release of Wisp already, {NAME} in namespace {SYSTEM}" in said
    assert "other" not in helm("list", "--all-namespaces")
