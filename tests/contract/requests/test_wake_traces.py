"""One trace of a request that wakes a model, over gateway, operator and runtime."""

import socket
import sys
from pathlib import Path

import pytest
from running_up import manifest, up
from trace_collector import collecting

SCRIPTED = Path(__file__).with_name("scripted_runtime.py")
CHAT = "POST /v1/chat/completions"
TREE = {
    f"gateway: {CHAT}": {
        "gateway: receive": {},
        "gateway: queue": {},
        "operator: wake default/tiny": {"operator: schedule": {}},
        "gateway: upstream": {
            f"runtime: {CHAT}": {"runtime: queue": {}, "runtime: prefill": {}, "runtime: decode": {}}
        },
    }
}


@pytest.fixture
def runtime(tmp_path):
    """A program like ``wisp-runtime`` that takes ``serve URI FLAG …``, and serves a scripted engine."""
    program = tmp_path / "runtime"
    program.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {SCRIPTED} {tmp_path / "tiny"} "$@"\n')
    program.chmod(0o755)
    return program


def test_a_request_its_wake_and_its_answer_are_one_trace_of_three_programs(tmp_path, runtime, monkeypatch):
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
        with up(tmp_path, manifest(), runtime=runtime) as running:
            assert running.ask()[0] == 200
            running.until(lambda: TREE in trees(collector))
            assert running.ask()[0] == 200  # of a model that is awake already: no wake
            running.until(lambda: len(trees(collector)) == 2)
        wakes = [span for span in collector.spans if "wake" in span["name"]]
        [queue] = [span for span in collector.spans if span["attributes"].get("wisp.waited_for_wake")]
    [wake] = wakes
    attributes = wake["attributes"]
    assert attributes.pop("wisp.pod").startswith("tiny-")
    assert attributes.pop("wisp.gpu") in ("cpu", "this machine")  # as the pod says, or before that the fit
    assert attributes == {
        "gen_ai.provider.name": "wisp",
        "gen_ai.request.model": "default/tiny",
        "wisp.gpu.count": 0,
        "wisp.model.uri": "hf://fake/tiny",
        "wisp.wake.outcome": "ready",
        "wisp.wake.reason": "Serving",
        "wisp.wake.waiting": 1,
        "wisp.wake.why": "Wake",
    }
    assert queue["trace"] == wake["trace"]
    assert wake["seconds"] > 0


def trees(collector):
    """Trees of all traces, without the pod's phases: one that is ready at once may show none yet."""
    spans = list(collector.spans)
    found = [collector.tree(trace) for trace in dict.fromkeys(span["trace"] for span in spans)]
    for tree in found:
        tree.get(f"gateway: {CHAT}", {}).get("operator: wake default/tiny", {}).pop("operator: import", None)
    return found


def test_a_collector_that_is_away_keeps_no_model_asleep_and_no_program_from_ending(tmp_path, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening: connections are refused
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with up(tmp_path, manifest()) as running:
            assert running.ask()[0] == 200
            assert running.end() == 0
