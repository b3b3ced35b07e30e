"""The span of a wake on a cluster, from the gateways' reports to the pod's answer."""

import asyncio
import time
from dataclasses import replace

import pytest
from recording_cluster import World
from trace_collector import collecting

from wisp_http.tracing import open_tracer
from wisp_operator.cluster.config import OperatorConfig, trace_endpoint
from wisp_operator.cluster.reconcile.reconciler import Reconciler
from wisp_operator.core.runtime_state import PhaseReport, RuntimeState
from wisp_operator.core.wake_spans import WakeSpans
from wisp_operator.desired.settings import BuildSettings

FIRST, SECOND = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2))
LOADING = (PhaseReport("import", is_done=True), PhaseReport("weights"))  # as short as this test's wake


class TracedWorld(World):
    """A cluster whose operator sends its spans to a collector."""

    def __init__(self, collector):
        super().__init__()
        self.collector = collector
        self.wakes = WakeSpans(open_tracer(collector.url, "wisp-operator"))
        self.reconciler = Reconciler(replace(self.dependencies, wakes=self.wakes))

    def spans(self):
        self.wakes.close()
        return {span["name"].removeprefix("operator: "): span for span in self.collector.spans}


@pytest.fixture
def world(monkeypatch):
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    with collecting() as collector:
        yield TracedWorld(collector)


def test_a_wake_is_a_part_of_the_first_request_and_linked_to_that_of_another_gateway(world):
    world.reconcile()
    world.ask(traces=[FIRST])
    world.reconcile()
    world.ask(gateway="other", traces=[SECOND])
    world.pod("chat-1", ready=False)
    world.polled["chat-1"] = RuntimeState(status="loading", device="cpu", phases=LOADING)
    world.reconcile()
    world.polled["chat-1"] = RuntimeState(status="ready", device="cpu", phases=LOADING)
    world.reconcile()  # it answers, and the kubelet has not found that yet
    assert world.status["state"] == "Waking"
    world.reconcile()
    spans = world.spans()
    wake = spans["wake a/chat"]
    assert (wake["trace"], wake["parent"]) == (f"{1:032x}", f"{1:016x}")
    assert wake["links"] == [f"{2:032x}"]
    assert {name for name in spans if spans[name]["parent"] == wake["id"]} >= {"import", "weights"}
    assert wake["attributes"]["wisp.wake.outcome"] == "ready"
    assert wake["attributes"]["wisp.pod"] == "chat-1"


def test_a_model_that_is_deleted_or_led_elsewhere_leaves_no_wake_behind(world):
    world.ask(traces=[FIRST])
    world.reconcile()
    world.reconciler.reset()
    world.ask(traces=[SECOND])
    world.reconcile()
    world.indexes["InferenceModel"].clear()
    asyncio.run(world.reconciler.reconcile("a/chat"))
    wake = world.spans()["wake a/chat"]
    assert len(world.collector.spans) == 2  # with its schedule: that of the former leadership is not sent
    assert (wake["trace"], wake["attributes"]["wisp.wake.reason"]) == (f"{2:032x}", "Deleted")


def test_a_failing_pod_is_an_error_with_its_reason(world):
    world.ask(traces=[FIRST])
    world.reconcile()
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"exitCode": 1, "message": '{"reason": "ModelNotFound", "message": "nothing there"}'}
    world.pod(
        "chat-1",
        ready=False,
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": ended | {"finishedAt": finished}},
        restartCount=1,
    )
    world.reconcile()
    wake = world.spans()["wake a/chat"]
    assert (wake["is_error"], wake["attributes"]["error.type"]) == (True, "ModelNotFound")
    assert wake["message"].startswith("nothing there.")


@pytest.mark.parametrize(
    ("flag", "variable", "endpoint"),
    [("http://a:1", "http://b:2", "http://a:1"), ("", "http://b:2", "http://b:2"), ("", "", None)],
)
def test_the_operators_collector_is_that_of_the_flag_or_of_the_environment(
    flag, variable, endpoint, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", variable)
    assert trace_endpoint(OperatorConfig(build=BuildSettings(otlp_endpoint=flag))) == endpoint
