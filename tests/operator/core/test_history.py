"""What is kept of a model beside its pods, the same on a machine and on a cluster."""

from types import SimpleNamespace

import pytest

from wisp_operator import api
from wisp_operator.core.demand import Report
from wisp_operator.core.history import REMEMBERED_STARTS, Memory
from wisp_operator.core.observation import Failure, PodFacts
from wisp_operator.local.history import Memory as LocalMemory
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
    return PodFacts(name, "Ready", ready_since=since)


@pytest.mark.parametrize(
    ("looks", "woke"),
    [
        ([(False, 0), (False, 1)], [False, True]),
        ([(False, 1), (False, 1)], [True, False]),  # decided again before the pod is seen
        ([(False, 1), (True, 1), (True, 3)], [True, False, False]),
        ([(False, 1), (False, 0), (False, 1)], [True, False, True]),  # given up, then asked anew
        ([(True, 2)], [False]),
    ],
)
def test_a_model_wakes_when_it_leaves_zero(looks, woke):
    memory = Memory()
    assert [memory.note_wake(is_live, replicas, 5.0) for is_live, replicas in looks] == woke


def test_a_cold_start_is_from_leaving_zero_until_the_first_pod_is_ready():
    memory = Memory()
    memory.note_wake(False, 1, 100.0)
    memory.note_ready([PodFacts("a", "Starting")], 103.0)
    assert memory.cold_start_s == ()
    memory.note_ready([ready("a", 104.0)], 104.0)
    assert memory.cold_start_s == (4.0,)
    memory.note_ready([ready("a", 104.0), ready("b", 160.0)], 160.0)  # one more pod is no cold start
    assert memory.cold_start_s == (4.0,)


def test_only_the_latest_cold_starts_are_kept():
    memory = Memory()
    for start in range(REMEMBERED_STARTS + 5):
        memory.note_wake(False, 1, 100.0 * start)
        memory.note_ready([ready(f"p{start}", 100.0 * start + start)], 100.0 * start + start)
    assert memory.cold_start_s == tuple(float(s) for s in range(5, REMEMBERED_STARTS + 5))


def test_each_failure_counts_once_and_a_ready_pod_forgives_all():
    memory = Memory()
    memory.note_failures("a", 1, KILLED)
    memory.note_failures("a", 1, KILLED)
    memory.note_failures("b", 2, KILLED)
    assert (memory.crashes, memory.last_failure) == (3, KILLED)
    memory.note_failures("c", 1, None)  # seen to end, but not badly
    memory.note_failures("c", 1, KILLED)
    assert memory.crashes == 3
    memory.note_ready([ready("d", 9.0)], 9.0)
    assert (memory.crashes, memory.last_failure) == (0, None)


def test_a_pod_that_is_gone_is_forgotten():
    memory = Memory()
    memory.note_failures("a", 2, KILLED)
    memory.forget_all_but({"b"})
    memory.note_failures("a", 1, KILLED)  # another pod of that name
    assert memory.crashes == 3


def test_a_machine_times_the_wake_and_not_every_pod():
    pod = SimpleNamespace(
        name="chat-1", state=PodState.STARTING, is_draining=False, created=100.2, ready_since=None
    )
    pod.failures, pod.last_failure, pod.restarts, pod.runtime = 0, None, 0, {}
    memory, asked = LocalMemory(created=0.0), Report(1, 0, 1, 0.0, 100.0)
    facts = memory.take(MODEL, [], asked, 100.0)
    memory.again(facts, [pod])
    memory.take(MODEL, [pod], asked, 101.0)
    pod.state, pod.ready_since = PodState.READY, 102.4
    assert memory.take(MODEL, [pod], asked, 102.5).cold_start_s == (2.5,)
    late = SimpleNamespace(**vars(pod) | {"name": "chat-2", "created": 110.0, "ready_since": 150.0})
    assert memory.take(MODEL, [pod, late], asked, 150.0).cold_start_s == (2.5,)
