"""Spans of wakes as a collector gets them: parents, links, phases, and each way in which a wake ends."""

import time

import pytest
from trace_collector import collecting

from wisp_http.tracing import open_tracer
from wisp_operator import api
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.observation import Demand, Failure, Observation, ObservedPod
from wisp_operator.core.runtime_state import PhaseReport, RuntimeState
from wisp_operator.core.status import summarise
from wisp_operator.core.wake_spans import MAX_LINKS, WakeSpans

NOW = time.time()
WAKE, IDLE, BACKOFF = Decision(1, "Wake"), Decision(0, "Idle"), Decision(0, "CrashBackOff")
FIT = FitReport("Fits", "It fits.", gpu="H200")
IMPORT = PhaseReport("import", is_done=True, seconds=2.0)
WEIGHTS = PhaseReport("weights", seconds=1.0, bytes=40, total_bytes=100)
LOADED = PhaseReport("weights", is_done=True, seconds=3.0, bytes=100, total_bytes=100)


def model(**spec):
    document = {"apiVersion": api.API_VERSION, "kind": api.KIND, "metadata": {"name": "chat"}}
    return api.parse(document | {"spec": {"model": {"uri": "hf://org/chat"}, **spec}})


def traceparent(number):
    return f"00-{number:032x}-{number:016x}-01"


class Observed:
    """Spans of one model's wakes, and the collector that gets them."""

    def __init__(self, collector):
        self.collector = collector
        self.wakes = WakeSpans(open_tracer(collector.url, "wisp-operator"))

    def at(self, after_s, *pods, traces=(), decision=WAKE, spec=None, **observation):
        """Observe pods, ``after_s`` seconds after the beginning."""
        demand = Demand(waiting=len(traces), traces=tuple(map(traceparent, traces)))
        found = Observation(pods=pods, demand=demand, fit=FIT, **observation)
        summary = summarise(spec or model(), found, decision, NOW)
        self.wakes.observe(spec or model(), found, summary, decision, NOW + after_s)
        return summary

    def spans(self):
        """Spans that were exported, by name, once it is closed."""
        self.wakes.close()
        return {span["name"].removeprefix("operator: "): span for span in self.collector.spans}


@pytest.fixture
def observed(monkeypatch):
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    with collecting() as collector:
        yield Observed(collector)


def pod(phase="Starting", *phases, status="loading", name="chat-1"):
    runtime = RuntimeState(status=status, device="NVIDIA H200", phases=phases) if phases else None
    return ObservedPod(name, phase, runtime=runtime)


def seconds(spans):
    return {name: round(span["seconds"], 2) for name, span in spans.items()}


def test_a_wake_has_the_phases_of_the_pod_that_answers_first(observed):
    observed.at(0, traces=[1])
    observed.at(1, pod("Pending"), traces=[1])
    schedule = PhaseReport("schedule", is_done=True, seconds=4.0)  # of the cluster, in whole seconds
    observed.at(5.5, pod("Starting", schedule, IMPORT, WEIGHTS), traces=[1])  # read 0.1 s after it was true
    observed.at(7.5, pod("Starting", schedule, IMPORT, LOADED), traces=[1])
    observed.at(8, pod("Starting", schedule, IMPORT, LOADED, status="ready"))
    observed.at(9, pod("Ready", schedule, IMPORT, LOADED, status="ready"))
    spans = observed.spans()
    assert seconds(spans) == {"schedule": 2.5, "import": 2.0, "weights": 3.0, "wake default/chat": 8.0}
    wake = spans["wake default/chat"]
    assert (wake["trace"], wake["parent"]) == (f"{1:032x}", f"{1:016x}")
    assert {span["parent"] for name, span in spans.items() if name != "wake default/chat"} == {wake["id"]}
    assert spans["weights"]["attributes"] == {"wisp.bytes": 100}
    assert wake["attributes"] == {
        "gen_ai.provider.name": "wisp",
        "gen_ai.request.model": "default/chat",
        "wisp.gpu": "NVIDIA H200",
        "wisp.gpu.count": 1,
        "wisp.model.uri": "hf://org/chat",
        "wisp.pod": "chat-1",
        "wisp.wake.outcome": "ready",
        "wisp.wake.reason": "Serving",
        "wisp.wake.waiting": 1,
        "wisp.wake.why": "Wake",
    }


def test_others_that_wait_are_linked_however_late_they_come_and_not_without_end(observed):
    observed.at(0, traces=[1, 2])
    observed.at(1, pod(), traces=[1, 2, 3])
    observed.at(2, pod(), traces=range(100, 200))
    observed.at(3, pod("Ready"), traces=range(100, 200))
    links = observed.spans()["wake default/chat"]["links"]
    assert links[:3] == [f"{number:032x}" for number in (2, 3, 100)]
    assert len(links) == MAX_LINKS


def test_a_wake_without_a_sampled_request_is_a_trace_of_its_own(observed):
    observed.at(0)
    observed.at(1, pod("Ready"))
    wake = observed.spans()["wake default/chat"]
    assert (wake["parent"], wake["links"]) == ("", [])


def test_a_wake_of_its_own_trace_has_no_more_links_than_another(observed):
    observed.at(0)
    observed.at(1, pod("Ready"), traces=range(100, 200))
    assert len(observed.spans()["wake default/chat"]["links"]) == MAX_LINKS


@pytest.mark.parametrize(
    ("last", "outcome", "reason", "failed"),
    [
        (
            {"last_failure": Failure("OOMKilled", "It needs 9 GiB.", NOW, 137), "crashes": 1},
            *("failed", "OOMKilled", {"wake default/chat", "weights"}),
        ),
        ({"spec": model(suspend=True)}, "ended", "Suspended", set()),
        ({"decision": IDLE}, "ended", "ScaledToZero", set()),
    ],
)
def test_a_wake_that_ends_without_a_pod_says_why(observed, last, outcome, reason, failed):
    observed.at(0, traces=[1])
    observed.at(4, pod("Starting", IMPORT, WEIGHTS), traces=[1])
    is_gone = outcome == "ended"
    observed.at(6, *(() if is_gone else [pod("BackingOff")]), **last)
    spans = observed.spans()
    wake = spans["wake default/chat"]["attributes"]
    assert (wake["wisp.wake.outcome"], wake["wisp.wake.reason"]) == (outcome, reason)
    assert {name for name, span in spans.items() if span["is_error"]} == failed
    assert {spans[name]["attributes"]["error.type"] for name in failed} == ({reason} if failed else set())
    assert all("It needs 9 GiB." in spans[name]["message"] for name in failed)


def test_a_pod_that_finds_no_node_shows_in_the_schedule_and_as_an_event(observed):
    stuck = ObservedPod("chat-1", "Pending", pending_message="0/3 nodes have a GPU.")
    observed.at(0, traces=[1])
    for after_s in (1, 2, 3):
        observed.at(after_s, stuck)
    observed.wakes.forget("default/chat")
    wake = observed.spans()["wake default/chat"]
    assert wake["events"] == ["Unschedulable"]
    assert wake["attributes"]["wisp.wake.reason"] == "Deleted"


def test_each_try_after_a_failure_is_a_wake(observed):
    crashed = {"last_failure": Failure("OOMKilled", "It needs 9 GiB.", NOW, 137), "crashes": 1}
    for after_s in (0, 10):
        observed.at(after_s, pod("Starting", IMPORT, WEIGHTS))
        assert observed.at(after_s + 5, pod("BackingOff"), **crashed).state == "Failed"
    observed.spans()
    wakes = [span for span in observed.collector.spans if "wake" in span["name"]]
    assert [round(span["seconds"]) for span in wakes] == [5, 5]


def test_a_pod_that_was_ready_and_starts_again_is_a_wake_with_its_new_phases(observed):
    observed.at(0, pod("Ready", IMPORT, LOADED, status="ready"))
    observed.at(9, pod("Restarting", IMPORT, LOADED, status="ready"))
    observed.at(12, pod("Unready", PhaseReport("import", seconds=1.0)))
    observed.at(14, pod("Unready", IMPORT, status="ready"))
    assert seconds(observed.spans()) == {"schedule": 2.0, "import": 2.0, "wake default/chat": 5.0}


def test_a_model_that_is_awake_and_a_wake_under_another_leader_have_no_span(observed):
    observed.at(0, pod("Ready"))
    observed.at(1, pod("Ready"), pod(name="chat-2"), decision=Decision(2, "Demand"))
    observed.at(2, pod())
    observed.wakes.clear()
    assert observed.spans() == {}


def test_without_a_tracer_nothing_is_kept():
    wakes = WakeSpans(None)
    found = Observation(demand=Demand(waiting=1))
    wakes.observe(model(), found, summarise(model(), found, WAKE, NOW), WAKE, NOW)
    wakes.close()
    assert wakes._wakes == {}
