"""History of a model that outlives its pods, the same on a machine and on a cluster."""

from types import SimpleNamespace

import pytest

from wisp_operator import api
from wisp_operator.core.demand import Report
from wisp_operator.core.history import MAX_COLD_STARTS, ModelHistory
from wisp_operator.core.observation import Failure, ObservedPod
from wisp_operator.core.runtime_state import RuntimeState
from wisp_operator.local.history import LocalHistory
from wisp_operator.local.processes.pods import PodState

MODEL = api.parse(
    {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {"model": {"uri": "file:///srv/chat"}},
    }
)
KILLED = Failure("Killed", "The process was killed by SIGKILL.", 1.0, 137)


def ready(name, since):
    return ObservedPod(name, "Ready", ready_since=since)


@pytest.mark.parametrize(
    ("decisions", "woke"),
    [
        ([(False, 0), (False, 1)], [False, True]),
        ([(False, 1), (False, 1)], [True, False]),  # decided refresh before the pod is seen
        ([(False, 1), (True, 1), (True, 3)], [True, False, False]),
        ([(False, 1), (False, 0), (False, 1)], [True, False, True]),  # given up, then demand anew
        ([(True, 2)], [False]),
    ],
)
def test_a_model_wakes_when_it_leaves_zero(decisions, woke):
    history = ModelHistory()
    assert [history.record_wake(is_live, replicas, 5.0) for is_live, replicas in decisions] == woke


def test_a_cold_start_is_from_leaving_zero_until_the_first_pod_is_ready():
    history = ModelHistory()
    history.record_wake(False, 1, 100.0)
    history.record_ready([ObservedPod("a", "Starting")], 103.0)
    assert history.cold_start_s == ()
    history.record_ready([ready("a", 104.0)], 104.0)
    assert history.cold_start_s == (4.0,)
    history.record_ready([ready("a", 104.0), ready("b", 160.0)], 160.0)  # one more pod is no cold start
    assert history.cold_start_s == (4.0,)


def test_a_cold_start_ends_when_the_runtime_is_ready_not_when_the_kubelet_says_so():
    history = ModelHistory()
    history.record_wake(False, 1, 100.0)
    going = ObservedPod("old", "Draining", runtime=RuntimeState(status="ready"))
    history.record_ready([going, ObservedPod("a", "Starting", runtime=RuntimeState(status="warming"))], 102.0)
    assert history.cold_start_s == ()
    history.record_ready([going, ObservedPod("a", "Starting", runtime=RuntimeState(status="ready"))], 102.5)
    assert history.cold_start_s == (2.5,)
    history.record_ready([ready("a", 104.0)], 104.0)
    assert history.cold_start_s == (2.5,)


def test_only_the_latest_cold_starts_are_kept():
    history = ModelHistory()
    for start in range(MAX_COLD_STARTS + 5):
        history.record_wake(False, 1, 100.0 * start)
        history.record_ready([ready(f"p{start}", 100.0 * start + start)], 100.0 * start + start)
    assert history.cold_start_s == tuple(float(s) for s in range(5, MAX_COLD_STARTS + 5))


def test_each_failure_counts_once_and_a_ready_pod_forgives_all():
    history = ModelHistory()
    history.record_failures("a", 1, KILLED)
    history.record_failures("a", 1, KILLED)
    history.record_failures("b", 2, KILLED)
    assert (history.crashes, history.last_failure) == (3, KILLED)
    history.record_failures("c", 1, None)  # seen to end, but not badly
    history.record_failures("c", 1, KILLED)
    assert history.crashes == 3
    history.record_ready([ready("d", 9.0)], 9.0)
    assert (history.crashes, history.last_failure) == (0, None)


def test_a_pod_that_is_gone_is_dropped():
    history = ModelHistory()
    history.record_failures("a", 2, KILLED)
    history.retain({"b"})
    history.record_failures("a", 1, KILLED)  # another pod of that name
    assert history.crashes == 3


def test_a_machine_times_the_wake_and_not_every_pod():
    pod = SimpleNamespace(
        name="chat-1", state=PodState.STARTING, is_draining=False, created=100.2, ready_since=None
    )
    pod.failures, pod.last_failure, pod.restarts, pod.runtime = 0, None, 0, None
    history, demand = LocalHistory(created=0.0), Report(1, 0, 1, 0.0, 100.0)
    observation = history.observe(MODEL, [], demand, 100.0)
    history.refresh(observation, [pod])
    history.observe(MODEL, [pod], demand, 101.0)
    pod.state, pod.ready_since = PodState.READY, 102.4
    assert history.observe(MODEL, [pod], demand, 102.5).cold_start_s == (2.5,)
    late = SimpleNamespace(**vars(pod) | {"name": "chat-2", "created": 110.0, "ready_since": 150.0})
    assert history.observe(MODEL, [pod, late], demand, 150.0).cold_start_s == (2.5,)


def test_a_pod_that_was_ready_all_along_forgives_no_other_ones_failure():
    history, good = ModelHistory(), ready("good", 1.0)
    history.record_ready([good], 1.0)
    history.record_failures("bad", 1, KILLED)
    for phase in ("BackingOff", "Starting"):
        history.record_ready([good, ObservedPod("bad", phase)], 2.0)
        assert (history.crashes, history.last_failure) == (1, KILLED)
    history.record_ready([good, ready("bad", 3.0)], 3.0)
    assert (history.crashes, history.last_failure) == (0, None)


def test_a_failing_pod_that_goes_is_forgiven_once_as_many_are_ready_as_wanted():
    history, good = ModelHistory(), ready("good", 1.0)
    history.record_ready([good], 1.0)
    history.record_failures("bad", 1, KILLED)
    history.record_ready([good, ObservedPod("bad", "Draining")], 2.0, wanted=2)
    assert history.crashes == 1
    history.record_ready([good], 3.0, wanted=1)
    assert history.crashes == 0
