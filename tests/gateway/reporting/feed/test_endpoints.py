"""Feed of pages over HTTP: the document, its changes, histories, wake and stop."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
POD_STATE = {
    "status": "ready",
    "phases": [
        {"name": "import", "seconds": 0.4, "state": "done", "bytes": 0, "totalBytes": 0},
        {"name": "weights", "seconds": 1.5, "state": "done", "bytes": 10, "totalBytes": 10},
    ],
    "ledger": {
        "weightsBytes": 100,
        "kvCacheBytes": 50,
        "workspaceBytes": 20,
        "graphsBytes": 5,
        "contextBytes": 1,
        "totalBytes": 176,
        "availableBytes": 200,
        "maxContext": 512,
        "gpu": {"name": "NVIDIA H200", "memoryBytes": 1000},
        "measured": {"allocatedBytes": 170, "processBytes": 180},
    },
    "load": {"kvBlocksUsed": 3, "kvBlocksTotal": 12, "promptTokensTotal": 30, "cachedTokensTotal": 10},
    "defaults": {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0},
}
USAGE = (
    'x-wisp-usage: {"promptTokens": 31, "cachedTokens": 16, "completionTokens": 12, "finish": "stop", '
    '"firstTokenSeconds": 0.02, "perTokenSeconds": 0.004}'
)


class Page:
    """A page that follows the gateway in a thread of its own, and keeps its events."""

    def __init__(self, world, **headers):
        self.events: list[tuple[str, dict]] = []
        self.comments = 0
        self.is_ended = False
        self.status = 0
        self._world = world
        self._headers = headers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def _follow(self):
        url = f"{self._world.url}/state/stream"
        with httpx.stream("GET", url, headers=self._headers, timeout=60, trust_env=False) as answer:
            self.status = answer.status_code
            kind = ""
            for line in answer.iter_lines():
                if self._stop.is_set():
                    return
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.events.append((kind, json.loads(line.removeprefix("data: "))))
        self.is_ended = True

    def of(self, kind):
        return [data for name, data in self.events if name == kind]

    def until(self, kind, claim=lambda _: True):
        """Wait for an event that fulfils a claim, and return it."""
        return self._world.until(lambda: next((data for data in self.of(kind) if claim(data)), None))

    @contextmanager
    def opened(self):
        self._thread.start()
        self.until("state")
        try:
            yield self
        finally:
            self._stop.set()


def page(world, **headers):
    return Page(world, **headers).opened()


def shape(value):
    """Return the names and kinds of a document, null and empty lists being anything."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return shape(value[0]) if value else None
    return None if value is None else ("number" if isinstance(value, int | float) else type(value).__name__)


def fits(document, sample):
    if document is None or sample is None:
        return True
    if isinstance(sample, dict):
        return document.keys() == sample.keys() and all(fits(document[name], sample[name]) for name in sample)
    return document == sample


def test_a_page_gets_the_document_at_once_and_what_its_pods_report(world):
    pod = world.pod()
    pod.state = POD_STATE
    world.model("m", pod, desiredReplicas=2)
    with page(world.start()) as followed:
        (first,) = followed.of("state")
        assert (first["status"], [model["name"] for model in first["models"]]) == ("ready", ["m"])
        model = followed.until("model", lambda model: model["gpu"])
    assert model["gpu"] == {"name": "NVIDIA H200", "memoryBytes": 1000}
    assert {row["name"]: row["bytes"] for row in model["ledger"]} == {
        "weights": 100,
        "kv": 50,
        "workspace": 25,
        "context": 1,
        "free": 24,
    }
    assert (model["context"], model["defaults"]["top_k"]) == (512, 20)
    assert model["replicas"] == {"desired": 2, "ready": 1}
    assert (model["startPhases"], model["canStop"]) == ([], False)


def test_pods_are_asked_only_while_a_page_is_open(world):
    pod = world.pod()
    world.model("m", pod)
    world.start()
    assert world.state()["ledger"] is None
    assert pod.states_read == 0
    with page(world):
        world.until(lambda: pod.states_read)


def test_a_page_sees_models_come_change_and_go(world):
    world.model("m", world.pod())
    with page(world.start()) as followed:
        world.model("n", state="Asleep")
        followed.until("model", lambda model: model["name"] == "n")
        world.model("n", state="Failed", reason="DoesNotFit", message="take a larger GPU")
        failed = followed.until("model", lambda model: model["state"] == "Failed")
        assert (failed["reason"], failed["message"]) == ("DoesNotFit", "take a larger GPU")
        world.remove("default/n")
        assert followed.until("gone") == {"key": "default/n"}


def test_a_finished_request_is_a_row_without_its_text(world):
    body = json.dumps({"choices": [{"message": {"content": "a secret"}}]}).encode()
    world.model("m", world.pod(world.does.write(world.answer(200, body, USAGE))))
    with page(world.start()) as followed:
        asked = {"model": "m", "messages": [{"role": "user", "content": "a secret"}]}
        assert world.post(json=asked, headers={"x-request-id": "mine-1"}).status_code == 200
        row = followed.until("request")
        sample = followed.until("sample")
    assert {name: row[name] for name in ("id", "key", "path", "status", "promptTokens", "cachedTokens")} == {
        "id": "mine-1",
        "key": "default/m",
        "path": "/v1/chat/completions",
        "status": 200,
        "promptTokens": 31,
        "cachedTokens": 16,
    }
    assert (row["completionTokens"], row["finish"], row["perTokenSeconds"]) == (12, "stop", 0.004)
    assert row["firstTokenSeconds"] >= 0.02
    assert sample["models"]["default/m"].keys() == {
        *("in", "out", "running", "waiting", "kv", "prefixHits", "gpuUsed")
    }
    history = world.http.get(f"{world.url}/state/history").json()
    assert history["requests"] == [row]
    assert "secret" not in json.dumps([history, followed.events])


def test_a_wake_is_followed_phase_by_phase_and_kept(world):
    waking = world.pod()
    waking.is_ready = False
    loading = {"name": "weights", "seconds": 0.5, "state": "running", "bytes": 62, "totalBytes": 100}
    waking.state = {**POD_STATE, "phases": [loading], "ledger": None}
    world.model("m", waking, state="Waking", ready=False, coldStart={"heartbeatSeconds": 0.05})
    with page(world.start()) as followed:
        asked = world.background(lambda: world.post(json={"model": "m", "messages": []}))
        model = followed.until("model", lambda model: model["phase"] == "weights")
        assert model["progress"] == 0.62
        assert [phase["name"] for phase in model["startPhases"]][-1] == "weights"
        followed.until("wake", lambda wake: wake["outcome"] == "running")
        waking.state = POD_STATE
        waking.is_ready = True
        wake = followed.until(
            "wake",
            lambda wake: wake["outcome"] == "ready" and "import" in [p["name"] for p in wake["phases"]],
        )
        assert asked.result(30).status_code == 200
    assert wake["key"] == "default/m"
    assert [phase["name"] for phase in wake["phases"]][:3] == ["schedule", "import", "weights"]
    kept = world.until(lambda: world.http.get(f"{world.url}/state/history").json()["wakes"])
    assert kept[-1]["began"] == wake["began"]


def test_a_held_streams_heartbeats_name_the_phase(world):
    world.model("m", state="Waking", phase="weights", progress=0.62, coldStart={"heartbeatSeconds": 0.05})
    with httpx.stream(
        "POST", f"{world.start().url}/v1/completions", json={"model": "m", "prompt": "x", "stream": True}
    ) as answer:
        assert next(answer.iter_lines()) == ": waking weights 62 %"


def test_the_documents_have_the_shape_of_the_samples(world):
    pod = world.pod(world.does.write(world.answer(200, b"{}", USAGE)))
    pod.state = POD_STATE
    world.model("m", pod, desiredReplicas=1, canStop=True)
    with page(world.start()) as followed:
        world.post()
        world.until(lambda: world.state()["ledger"])
        followed.until("sample")
    state = world.http.get(f"{world.url}/state").json()
    history = world.http.get(f"{world.url}/state/history").json()
    expected = json.loads((SAMPLES / "history.json").read_text())
    assert fits(shape(state), shape(json.loads((SAMPLES / "state.json").read_text())))
    assert fits(shape(history["requests"]), shape(expected["requests"]))
    assert history.keys() == expected.keys()


def test_a_model_wakes_without_a_request_and_a_ready_one_stays(world):
    pod = world.pod()
    world.model("m", pod)
    world.model("n", state="Asleep")
    world.start()
    assert world.http.post(f"{world.url}/state/wake/default/m").status_code == 200
    for _ in range(2):
        assert world.http.post(f"{world.url}/state/wake/default/n").status_code == 202
    assert (world.state("n")["waiting"], world.state("n")["arrivals"]) == (1, 1)
    world.model("n", world.pod())
    world.until(lambda: world.state("n")["waiting"] == 0)
    assert world.state("n")["running"] == 0


def test_a_model_that_rejects_while_it_sleeps_is_woken_by_its_count(world):
    world.model("n", state="Asleep", coldStart={"mode": "Reject"})
    assert world.start().http.post(f"{world.url}/state/wake/default/n").status_code == 202
    assert world.state("n")["arrivals"] == 1


@pytest.mark.parametrize(
    ("state", "path", "status", "code"),
    [
        ("Failed", "wake/default/m", 503, "model_failed"),
        ("Suspended", "wake/default/m", 503, "model_suspended"),
        ("Asleep", "wake/default/other", 404, "model_not_found"),
        ("Ready", "stop/default/m", 403, "stop_not_allowed"),
        ("Ready", "stop/default", 404, "unknown_path"),
        ("Ready", "other", 404, "unknown_path"),
    ],
)
def test_a_wake_or_stop_that_cannot_be_says_why(world, state, path, status, code):
    world.model("m", state=state, reason="DoesNotFit", message="take a larger GPU")
    refused = world.start().http.post(f"{world.url}/state/{path}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "stream"), ("DELETE", "history"), ("GET", "wake/default/m")]
)
def test_each_part_has_its_method(world, method, path):
    world.model("m")
    assert world.start().http.request(method, f"{world.url}/state/{path}").status_code == 405


@pytest.mark.parametrize(
    ("origin", "allowed", "status"),
    [
        ("{url}", (), 200),
        ("https://elsewhere.example", (), 403),
        ("https://elsewhere.example", ("https://elsewhere.example",), 200),
        ("null", (), 403),
        ("http://[x", (), 403),
    ],
)
def test_a_page_of_another_origin_wakes_nothing(world, origin, allowed, status):
    world.model("m", world.pod())
    world.start(allow_origin=allowed)
    headers = {"origin": origin.format(url=world.url)}
    assert world.http.post(f"{world.url}/state/wake/default/m", headers=headers).status_code == status


def test_a_models_own_key_shows_that_model_alone(world, tmp_path):
    keys = tmp_path / "m-keys"
    keys.write_text("sk-m\n")
    pod = world.pod(world.does.write(world.answer(200, b"{}", USAGE)))
    world.model("m", pod, apiKeysFile=str(keys))
    world.model("n", world.pod())
    world.start()
    world.gateway.app._access._is_loopback_trusted = False  # as on a cluster
    mine = {"authorization": "Bearer sk-m"}
    with page(world, **mine) as followed:
        assert [model["name"] for model in followed.of("state")[0]["models"]] == ["m"]
        world.post(json={"model": "n", "prompt": "x"}, path="/v1/completions")
        world.post(json={"model": "m", "prompt": "x"}, path="/v1/completions", headers=mine)
        assert followed.until("request")["key"] == "default/m"
        assert {model["name"] for model in followed.of("model")} <= {"m"}
    history = world.http.get(f"{world.url}/state/history", headers=mine).json()
    assert {row["key"] for row in history["requests"]} == {"default/m"}
    assert world.http.post(f"{world.url}/state/wake/default/n", headers=mine).status_code == 404
    for path in ("", "/stream", "/history"):
        assert world.http.get(f"{world.url}/state{path}").status_code == 401


def test_a_page_whose_key_opens_other_models_gets_the_state_again(world, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp_gateway.reporting.feed.endpoints.COMMENT_S", 0.05)
    keys = tmp_path / "m-keys"
    keys.write_text("sk-m\n")
    world.model("m", world.pod(), apiKeysFile=str(keys))
    world.start()
    world.gateway.app._access._is_loopback_trusted = False  # as on a cluster
    with page(world, authorization="Bearer sk-m") as followed:
        (tmp_path / "n-keys").write_text("sk-m\n")
        world.model("n", state="Asleep", apiKeysFile=str(tmp_path / "n-keys"))
        followed.until("state", lambda state: [model["name"] for model in state["models"]] == ["m", "n"])
        keys.write_text("another\n")
        followed.until("state", lambda state: [model["name"] for model in state["models"]] == ["n"])


def test_pages_end_when_the_gateway_stops_and_delay_it_for_nothing(world):
    world.model("m", world.pod())
    with page(world.start(drain_timeout_s=60)) as followed:
        world.call(world.gateway.server.stop)
        world.until(lambda: followed.is_ended)


def test_a_page_too_many_is_refused(world, monkeypatch):
    monkeypatch.setattr("wisp_gateway.reporting.feed.subscribers.MAX_SUBSCRIBERS", 1)
    world.model("m", world.pod())
    with page(world.start()):
        refused = world.http.get(f"{world.url}/state/stream")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_pages")
        assert int(refused.headers["retry-after"]) > 0


def test_one_key_cannot_hold_every_page(world, monkeypatch, tmp_path):
    monkeypatch.setattr("wisp_gateway.reporting.feed.subscribers.MAX_SUBSCRIBERS_EACH", 1)
    keys = tmp_path / "m-keys"
    keys.write_text("a:sk-a\nb:sk-b\n")
    world.model("m", world.pod(), apiKeysFile=str(keys))
    world.start()
    of_a, of_b = ({"authorization": f"Bearer sk-{name}"} for name in "ab")
    with page(world, **of_a):
        refused = world.http.get(f"{world.url}/state/stream", headers=of_a)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_pages")
        with page(world, **of_b) as followed:
            assert followed.of("state")


def test_a_models_keys_do_not_see_who_else_asks(world, tmp_path):
    keys = tmp_path / "m-keys"
    keys.write_text("alice:sk-a\nbob:sk-b\n")
    world.model("m", world.pod(world.does.write(world.answer(200, b"{}", USAGE))), apiKeysFile=str(keys))
    world.start()
    world.gateway.app._access._is_loopback_trusted = False
    bob = {"authorization": "Bearer sk-b"}
    with page(world, **bob) as followed:
        hers = {"authorization": "Bearer sk-a", "x-request-id": "alices-secret-plan"}
        world.post(json={"model": "m", "prompt": "x"}, path="/v1/completions", headers=hers)
        rows = [followed.until("request")]
    rows += world.http.get(f"{world.url}/state/history", headers=bob).json()["requests"]
    assert [(row["id"], row["keyName"], row["promptTokens"] > 0) for row in rows] == [("", "", True)] * 2


def test_a_pod_that_cannot_be_reached_costs_the_page_nothing(world):
    world.model("m", world.pod(is_listening=False))
    with page(world.start()) as followed:
        world.model("n", state="Asleep")
        followed.until("model", lambda model: model["name"] == "n")
    assert followed.of("state")[0]["models"][0]["ledger"] is None


def test_a_page_that_closes_is_the_end_of_its_stream_and_no_error_of_a_model(world, caplog):
    caplog.set_level("INFO", logger="wisp_gateway.access")
    world.start()
    with httpx.stream("GET", f"{world.url}/state/stream", timeout=60, trust_env=False) as answer:
        next(answer.iter_lines())
    (record,) = world.until(lambda: [each for each in caplog.records if each.name == "wisp_gateway.access"])
    fields = next(value for value in vars(record).values() if isinstance(value, dict) and "status" in value)
    assert (fields["path"], fields["status"]) == ("/state/stream", 200)
    assert world.metric("wisp_gateway_requests_total{") == 0
