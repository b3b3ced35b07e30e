"""The autoscaler: one table of decisions, and properties that hold for every load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp_operator import api
from wisp_operator.api import Scaling, Spec
from wisp_operator.api.quantities import Duration
from wisp_operator.core.autoscale import append_sample, average, backoff_s, decide, deletion_costs
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.observation import Demand, Failure, Observation, ObservedPod, Sample
from wisp_operator.core.runtime_state import Load, RuntimeState

NOW = 10_000.0


def spec(**fields: Any) -> Spec:
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "hf://a/b"}, **fields},
    }
    return api.parse(document).spec


def pods(
    ready: int = 0, starting: int = 0, draining: int = 0, backing_off: int = 0
) -> tuple[ObservedPod, ...]:
    return (
        *(ObservedPod(f"r{i}", "Ready", created=NOW - 5000, ready_since=NOW - 4000) for i in range(ready)),
        *(ObservedPod(f"s{i}", "Starting", created=NOW - 5) for i in range(starting)),
        *(ObservedPod(f"b{i}", "BackingOff", created=NOW - 5) for i in range(backing_off)),
        *(ObservedPod(f"d{i}", "Draining", created=NOW - 5, ready_since=NOW - 4000) for i in range(draining)),
    )


def load(
    *steps: tuple[float, float], waiting: int = 0, running: int = 0, idle_s: float | None = 0.0
) -> Demand:
    """Demand whose samples were taken ``ago`` seconds before now: ``(ago, concurrency)``."""
    return Demand(waiting, running, idle_s, tuple(Sample(NOW - ago, value) for ago, value in steps))


def crashed(ago: float, reason: str = "Killed") -> Failure:
    return Failure(reason, "out of memory", NOW - ago)


OOM = Failure("OOMKilled", "", NOW - 1)
OUTGROWN = ObservedPod("o", "BackingOff", outgrew_given_limit=True)
OUTGROWN_YOUNG = replace(OUTGROWN, created=NOW - 59)
OUTDATED = ObservedPod("e", "BackingOff", is_outdated=True)
NO_ROOM = ObservedPod("n", "Pending", pending_message="0/1 nodes are available")
FIT, NO_FIT = FitReport("Fits", ""), FitReport("DoesNotFit", "")
ZERO = {"scaling": {"max": 4, "targetConcurrency": 10}}
WARM = {"scaling": {"min": 1, "max": 4, "targetConcurrency": 10}}
HELD = load((0, 1), waiting=1)
LONG_AGO = load((60, 0), idle_s=9999)
FULL = load((60, 25), running=25)
BURST = load((60, 5), (6, 45), running=45)
QUIET = load((60, 5), running=5)


@pytest.mark.parametrize(
    ("fields", "observation", "expect"),
    [
        # Asleep, and woken by the first request.
        (ZERO, Observation(), (0, "Idle")),
        (ZERO, Observation(demand=HELD), (1, "Wake")),
        (
            ZERO,
            Observation(demand=load((0, 35), waiting=35)),
            (4, "Wake"),
        ),  # a crowd at the door: as many as it takes
        (ZERO, Observation(demand=load((0, 500), waiting=500)), (4, "Wake")),
        (WARM, Observation(), (1, "KeptWarm")),
        # A rejected request waits nowhere, but it was there.
        ({**ZERO, "coldStart": {"mode": "Reject"}}, Observation(demand=load(idle_s=0.5)), (1, "Wake")),
        ({**ZERO, "coldStart": {"mode": "Reject"}}, Observation(demand=load(idle_s=None)), (0, "Idle")),
        (ZERO, Observation(demand=load(idle_s=0.5)), (0, "Idle")),  # held, and the client left
        # Idle.
        (ZERO, Observation(pods(ready=2), LONG_AGO), (0, "Idle")),
        (WARM, Observation(pods(ready=2), LONG_AGO), (1, "KeptWarm")),
        (ZERO, Observation(pods(ready=1), load((60, 0), idle_s=599)), (1, "Demand")),
        (ZERO, Observation(pods(ready=1), load((60, 0), idle_s=600)), (0, "Idle")),
        (
            ZERO,
            Observation(pods(ready=1), load((60, 1), running=1, idle_s=9999)),
            (1, "Demand"),
        ),  # still running
        (
            ZERO,
            Observation(pods(ready=1), load((60, 0), idle_s=None)),
            (0, "Idle"),
        ),  # ready for long, never asked
        # Never down before it was once ready, even if the client has given up.
        (ZERO, Observation(pods(starting=1), LONG_AGO), (1, "WaitingForFirstReady")),
        ({"scaling": {"max": 2}}, Observation(pods(starting=3), LONG_AGO), (2, "WaitingForFirstReady")),
        (ZERO, Observation(pods(ready=1, starting=1), LONG_AGO), (0, "Idle")),
        # What drains is not counted.
        (ZERO, Observation(pods(draining=2), HELD), (1, "Wake")),
        # Load.
        (ZERO, Observation(pods(ready=1), FULL), (3, "Demand")),
        (ZERO, Observation(pods(ready=2), FULL), (3, "Demand")),
        (ZERO, Observation(pods(ready=1), BURST), (4, "Panic")),  # before the stable average has noticed
        (ZERO, Observation(pods(ready=4), BURST), (4, "Demand")),
        (ZERO, Observation(pods(ready=4), QUIET), (1, "Demand")),
        # A burst within the stable window keeps the pods it needed.
        (ZERO, Observation(pods(ready=4), load((60, 5), (40, 38), (30, 0), running=1)), (4, "Demand")),
        (
            ZERO,
            Observation(pods(ready=4), load((80, 5), (75, 38), (65, 0), (60, 0), running=1)),
            (1, "Demand"),
        ),
        # By hand.
        ({"replicas": 3}, Observation(), (3, "Manual")),
        ({"replicas": 0}, Observation(pods(ready=2), FULL), (0, "Manual")),
        ({"replicas": 0}, Observation(pods(starting=2)), (0, "Manual")),
        ({"replicas": 2}, Observation(pods(ready=2), LONG_AGO), (2, "Manual")),
        # Suspended outranks everything, then a model that cannot fit.
        ({**WARM, "suspend": True}, Observation(pods(ready=2), FULL), (0, "Suspended")),
        ({"replicas": 3, "suspend": True}, Observation(fit=NO_FIT), (0, "Suspended")),
        (WARM, Observation(pods(starting=1), FULL, fit=NO_FIT), (0, "DoesNotFit")),
        ({"replicas": 3}, Observation(fit=NO_FIT), (0, "DoesNotFit")),
        (WARM, Observation(demand=FULL, fit=FitReport("Unsupported", "")), (0, "ModelUnsupported")),
        (ZERO, Observation(demand=HELD, fit=FIT), (1, "Wake")),
        (ZERO, Observation(demand=HELD, fit=FitReport("Unknown", "")), (1, "Wake")),
        # Crashes: no new pod until it is due, but those there stay. Beside pods that serve it may be made.
        (ZERO, Observation(demand=HELD, crashes=1, last_failure=crashed(4.9)), (0, "CrashBackOff")),
        (ZERO, Observation(demand=HELD, crashes=1, last_failure=crashed(5.0)), (1, "Wake")),
        (ZERO, Observation(demand=HELD, crashes=4, last_failure=crashed(39)), (0, "CrashBackOff")),
        (ZERO, Observation(pods(ready=1), FULL, crashes=4, last_failure=crashed(1)), (3, "Demand")),
        (
            {"replicas": 2},
            Observation(pods(ready=1), crashes=2, last_failure=crashed(1)),
            (2, "Manual"),
        ),
        (ZERO, Observation(pods(backing_off=1), HELD, crashes=2, last_failure=crashed(1)), (1, "Demand")),
        # A restart keeps a limit that the Deployment does not name, a new pod may get another.
        (ZERO, Observation((OUTGROWN,), HELD, crashes=1, last_failure=OOM), (0, "Replace")),
        ({"replicas": 2}, Observation((OUTGROWN, *pods(ready=1)), HELD, 1, OOM), (1, "Replace")),
        ({"replicas": 2}, Observation((OUTGROWN_YOUNG, *pods(ready=1)), HELD, 1, OOM), (2, "Manual")),
        (ZERO, Observation((OUTGROWN, *pods(starting=1)), HELD, 1, OOM), (2, "WaitingForFirstReady")),
        (
            {"scaling": {"min": 1}},
            Observation((), LONG_AGO, 9, crashed(59.9, "OOMKilled")),
            (0, "CrashBackOff"),
        ),
        ({"scaling": {"min": 1}}, Observation((), LONG_AGO, 9, crashed(60, "OOMKilled")), (1, "KeptWarm")),
        # A failing pod of an earlier spec makes room for one that has none.
        (ZERO, Observation((OUTDATED, NO_ROOM), HELD, crashes=1, last_failure=crashed(1)), (0, "Replace")),
        (ZERO, Observation((OUTDATED, *pods(starting=1)), HELD), (2, "WaitingForFirstReady")),
        (ZERO, Observation((OUTDATED, NO_ROOM, *pods(ready=1)), FULL), (3, "Demand")),
        # A pod that only crashes without demand may go.
        (ZERO, Observation(pods(backing_off=1), LONG_AGO, crashes=3, last_failure=crashed(1)), (0, "Idle")),
    ],
)
def test_the_number_of_pods_follows_from_what_was_observed(fields, observation, expect):
    decision = decide(spec(**fields), observation, NOW)
    assert (decision.replicas, decision.why) == expect
    assert (decision.retry_at is not None) == (decision.why == "CrashBackOff")


def test_back_off_says_when_it_ends():
    observation = Observation(demand=HELD, crashes=3, last_failure=crashed(1))
    assert decide(spec(**ZERO), observation, NOW).retry_at == NOW - 1 + 20


@pytest.mark.parametrize(
    ("crashes", "seconds"), [(0, 0), (1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (8, 300), (10_000, 300)]
)
def test_back_off_doubles_up_to_five_minutes(crashes, seconds):
    assert backoff_s(crashes) == seconds


@pytest.mark.parametrize(
    ("steps", "window_s", "expect"),
    [
        ((), 60, 0.0),
        (((0, 7),), 60, 7.0),  # one sample, just taken
        (((30, 7),), 60, 7.0),  # a short history is not diluted
        (((60, 0), (30, 10)), 60, 5.0),
        (((600, 4),), 60, 4.0),
        (((60, 0), (6, 10)), 6, 10.0),
        (((90, 100), (60, 2)), 60, 2.0),
        (((61, 100), (31, 2)), 60, (29 * 100 + 31 * 2) / 60),  # a sample holds until the next
    ],
)
def test_the_average_weighs_a_sample_by_how_long_it_held(steps, window_s, expect):
    history = tuple(Sample(NOW - ago, value) for ago, value in steps)
    assert average(history, window_s, NOW) == pytest.approx(expect)


def test_history_is_forgotten_once_no_window_reaches_it():
    history: tuple[Sample, ...] = ()
    for second in range(1000):
        history = append_sample(history, Sample(float(second), 1.0), Scaling())
    assert history[0].at <= 999 - 60 < history[1].at
    assert len(history) == 61
    assert append_sample(history, Sample(999.0, 5.0))[-1] == Sample(999.0, 5.0)
    assert len(append_sample(history, Sample(999.0, 5.0))) == 61


def loaded(name: str, running: int, created: float = 1.0) -> ObservedPod:
    return ObservedPod(name, "Ready", created=created, runtime=RuntimeState(load=Load(running=running)))


@pytest.mark.parametrize(
    ("found", "first_to_go"),
    [
        (pods(ready=1, starting=1, draining=2), ["s0", "r0"]),  # those that drain are going already
        ((loaded("busy", 5), loaded("calm", 1)), ["calm", "busy"]),
        (
            (loaded("old", 1, created=1.0), loaded("young", 1, created=2.0)),
            ["young", "old"],  # the old one has the fuller prefix cache
        ),
    ],
)
def test_the_least_useful_pods_go_first(found, first_to_go):
    costs = deletion_costs(found)
    assert sorted(costs, key=lambda name: costs[name]) == first_to_go


scalings = st.builds(
    lambda low, more, target: Scaling(min=low, max=max(1, low + more), target_concurrency=target),
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(1, 40),
)
phases = st.sampled_from(["Pending", "Starting", "Ready", "Unready", "BackingOff", "Draining"])
some_pods = st.lists(
    st.builds(
        lambda phase, age, ready: ObservedPod(
            "p", phase, NOW - age, NOW - age / 2 if ready or phase in ("Ready", "Unready") else None
        ),
        phases,
        st.floats(1, 5000),
        st.booleans(),
    ),
    max_size=8,
)
demands = st.builds(
    lambda waiting, running, idle, values: Demand(
        waiting, running, idle, tuple(Sample(NOW - 2.0 * ago, float(v)) for ago, v in enumerate(values))[::-1]
    ),
    st.integers(0, 200),
    st.integers(0, 200),
    st.none() | st.floats(0, 5000),
    st.lists(st.integers(0, 300), max_size=40),
)
any_observation = st.builds(
    lambda found, demand, crashes, ago: Observation(
        tuple(found), demand, crashes, crashed(ago) if crashes else None
    ),
    some_pods,
    demands,
    st.integers(0, 9),
    st.floats(0, 900),
)


@given(scalings, any_observation)
def test_never_above_max_and_never_below_min_unless_pods_crash(scaling, observation):
    fields = replace(spec(), scaling=scaling)
    decision = decide(fields, observation, NOW)
    if decision.why == "CrashBackOff":
        assert decision.replicas == len(observation.live)  # nothing is added, nothing is taken
    else:
        assert scaling.min <= decision.replicas <= scaling.max
    assert decide(replace(fields, suspend=True), observation, NOW).replicas == 0


@given(scalings, any_observation)
def test_a_request_always_has_a_pod_on_its_way_unless_pods_crash(scaling, observation):
    decision = decide(replace(spec(), scaling=scaling), observation, NOW)
    if observation.demand.waiting + observation.demand.running and decision.why != "CrashBackOff":
        assert decision.replicas >= 1


@given(scalings, any_observation)
def test_a_model_that_was_never_ready_keeps_its_pods_up_to_max(scaling, observation):
    live = observation.live
    if live and not observation.crashes and all(pod.ready_since is None for pod in live):
        decision = decide(replace(spec(), scaling=scaling), observation, NOW)
        assert decision.replicas >= min(len(live), scaling.max)


@given(scalings, any_observation)
def test_deciding_twice_on_the_same_observation_decides_the_same(scaling, observation):
    fields = replace(spec(), scaling=scaling)
    assert decide(fields, observation, NOW) == decide(fields, observation, NOW)


def simulate(scaling: Scaling, seconds: list[int]) -> list[int]:
    """Pods over time when each second brings that many requests in flight, and pods start in 3 seconds."""
    fields = replace(spec(), scaling=scaling)
    history: tuple[Sample, ...] = ()
    living: list[ObservedPod] = []
    counts, asked_at = [], None
    for second, concurrency in enumerate(seconds):
        now = NOW + second
        asked_at = now if concurrency else asked_at
        history = append_sample(history, Sample(now, float(concurrency)), scaling)
        living = [
            replace(pod, phase="Ready", ready_since=pod.ready_since or now) if now - pod.created >= 3 else pod
            for pod in living
        ]
        idle_s = None if asked_at is None else now - asked_at
        observation = Observation(tuple(living), Demand(0, concurrency, idle_s, history))
        decision = decide(fields, observation, now)
        costs = deletion_costs(living)
        living = sorted(living, key=lambda pod: costs[pod.name])[max(0, len(living) - decision.replicas) :]
        living += [
            ObservedPod(f"p{second}-{i}", "Starting", now) for i in range(decision.replicas - len(living))
        ]
        counts.append(len(living))
    return counts


@settings(max_examples=40, deadline=None)
@given(scalings, st.integers(0, 200), st.integers(0, 200))
def test_a_constant_load_settles_and_then_never_flaps(scaling, before, constant):
    counts = simulate(scaling, [before] * 70 + [constant] * 140)
    settled = counts[70 + 66 :]  # the stable window and the short one no longer reach the time before
    assert len(set(settled)) == 1
    if constant:
        assert settled[0] == min(max(-(-constant // scaling.target_concurrency), scaling.min, 1), scaling.max)


@settings(max_examples=30, deadline=None)
@given(scalings, st.lists(st.integers(0, 200), min_size=10, max_size=120))
def test_pods_stay_that_some_burst_of_the_stable_window_needed(scaling, seconds):
    counts = simulate(scaling, seconds)
    for i in range(1, len(counts)):
        if counts[i] < counts[i - 1]:
            recent = range(max(6, i - 54), i + 1)
            needed = max((min(seconds[j - 6 : j + 1]) for j in recent), default=0)
            assert counts[i] >= min(-(-needed // scaling.target_concurrency), scaling.max)


def test_a_model_wakes_at_once_and_sleeps_after_its_idle_time():
    scaling = Scaling(idle_after=Duration("20s"))
    counts = simulate(scaling, [0] * 5 + [1] * 10 + [0] * 30)
    assert counts[:5] == [0] * 5
    assert counts[5] == 1
    assert counts.index(0, 6) == 5 + 9 + 20
