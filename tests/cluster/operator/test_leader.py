"""Two replicas, one writer; a leader that dies or goes is followed within seconds."""

import time

from kube import apply, at_rest, get, kubectl, model, status, until
from machine_pace import pace


def two_replicas(start_operator):
    """Start two; the leader and the other one."""
    first, second = start_operator("one"), start_operator("two")
    until(lambda: first.leads() or second.leads())
    until(lambda: first.metrics() and second.metrics())  # both listen
    return (first, second) if first.leads() else (second, first)


def test_of_two_replicas_only_the_leader_writes(start_operator, namespace):
    leader, follower = two_replicas(start_operator)
    apply(*(model(f"chat-{i}") for i in range(5)), namespace=namespace)
    until(lambda: all(status(f"chat-{i}", namespace).get("state") == "Asleep" for i in range(5)))
    assert follower.writes() == 0
    assert leader.writes() > 0
    assert not follower.leads()


def test_demand_posted_to_a_follower_wakes_the_model(start_operator, namespace):
    leader, follower = two_replicas(start_operator)
    apply(model("chat"), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    # Until it has read the lease it answers 503, and a gateway tries again.
    until(lambda: follower.ask(f"{namespace}/chat") == 204)
    until(lambda: status("chat", namespace)["state"] in ("Waking", "Ready"))
    assert leader.metrics()['wisp_operator_demand_reports_total{way="passed-on"}'] >= 1


def test_a_leader_that_is_killed_is_followed_within_its_lease(start_operator, namespace):
    leader, follower = two_replicas(start_operator)
    with pace() as machine:
        leader.kill()
        killed = time.monotonic()
        until(follower.leads, every=0.1)
        took_s = time.monotonic() - killed
    print(f"killed leader followed after {took_s:.1f} s")
    assert took_s < 10 * machine.stretch
    apply(model("chat"), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Asleep")


def test_a_leader_that_gets_sigterm_hands_over_at_once(start_operator, namespace):
    leader, follower = two_replicas(start_operator)
    assert leader.stop() == 0
    stopped = time.monotonic()
    holders = [lease["spec"].get("holderIdentity") for lease in get("leases", namespace=namespace)]
    assert leader.identity not in holders  # given back; else the follower would wait until it runs out
    until(follower.leads, every=0.1)
    print(f"stopped leader followed after {time.monotonic() - stopped:.1f} s")


def test_a_new_leader_takes_nothing_away_and_forgets_no_failure(start_operator, namespace):
    leader, follower = two_replicas(start_operator)
    scaling = {"idleAfter": "10m", "max": 3}
    apply(model("busy", scaling=scaling), namespace=namespace)
    until(lambda: status("busy", namespace).get("state") == "Asleep")
    until(lambda: leader.ask(f"{namespace}/busy", 40) and status("busy", namespace)["readyReplicas"] == 3)
    before = at_rest(lambda: status("busy", namespace))
    leader.kill()
    until(follower.leads)
    time.sleep(3)
    after = status("busy", namespace)
    assert after["desiredReplicas"] == 3
    times = [{c["type"]: c["lastTransitionTime"] for c in found["conditions"]} for found in (before, after)]
    assert times[0] == times[1]
    assert get("deployment", "busy", namespace)["spec"]["replicas"] == 3


def test_a_spec_changed_while_no_operator_runs_is_caught_up_with(start_operator, namespace):
    operator = start_operator("one")
    until(operator.leads)
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: status("chat", namespace).get("readyReplicas") == 1)
    operator.stop()
    apply(model("chat", replicas=1, runtime={"maxConcurrent": 7}), namespace=namespace)
    kubectl("delete", "service", "chat", "-n", namespace)
    start_operator("two")
    generation = get("inferencemodel", "chat", namespace)["metadata"]["generation"]
    until(lambda: status("chat", namespace).get("observedGeneration") == generation)
    until(lambda: get("service", namespace=namespace))
    container = get("deployment", "chat", namespace)["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][container["args"].index("--max-concurrent") + 1] == "7"
    until(lambda: status("chat", namespace)["state"] == "Ready")


def test_a_new_leader_of_a_cluster_at_rest_writes_nothing(start_operator, namespace):
    first = start_operator("one")
    until(first.leads)
    # Names of their own: who has a bare name changes while another test's namespace goes.
    apply(model("resting"), model("working", replicas=1), namespace=namespace)
    until(lambda: status("resting", namespace).get("state") == "Asleep")
    until(lambda: status("working", namespace).get("fit", {}).get("basis") == "measured by a pod")

    def read():
        return [get("imodel", name, namespace) for name in ("resting", "working")]

    before = at_rest(read)
    first.stop()
    second = start_operator("two")
    until(second.leads)
    time.sleep(5)
    assert read() == before
