"""Readiness probes of broken pods; pods that drain."""

from __future__ import annotations

from wisp_gateway.upstream import readiness_prober


def test_a_pod_that_broke_one_connection_comes_back_without_queued_requests(world):
    """The snapshot never had it unready, so only a probe can."""
    broken = world.pod(world.does.write(b"", then="die"))
    other = world.pod()
    world.model("m", broken, other, routing="LeastLoad")
    world.start()
    assert [world.post().status_code for _ in range(2)] == [200, 200]
    world.until(lambda: [e["ready"] for e in world.state()["endpoints"]].count(True) == 1)
    broken.handler = world.does.talk()
    world.do(broken.start())
    world.until(lambda: all(e["ready"] for e in world.state()["endpoints"]))


def test_a_draining_pod_gets_nothing_new_and_keeps_what_it_has(world):
    leaving, other = world.pod(world.does.talk(6, gap_s=0.1)), world.pod()
    world.model("m", leaving, routing="LeastLoad")
    world.start()
    stream = world.background(lambda: world.text_of(world.chat(stream=True)))
    world.until(lambda: leaving.seen)
    ends = [
        {"id": "a", "address": leaving.address, "ready": False, "draining": True},
        {"id": "b", "address": other.address, "ready": True, "draining": False},
    ]
    world.publish([{"namespace": "default", "name": "m", "state": "Ready", "endpoints": ends}])
    assert all(world.post().status_code == 200 for _ in range(10))
    assert stream.result(60).endswith("w5 ")
    assert (len(leaving.seen), len(other.seen)) == (1, 10)


def test_a_namespace_with_many_pods_has_few_probes_at_a_time_and_each_pod_its_turn(world, monkeypatch):
    monkeypatch.setattr(readiness_prober, "MAX_PROBES_A_NAMESPACE", 2)
    pods = [world.pod() for _ in range(5)]
    for pod in pods[:4]:
        world.do(pod.kill())
        pod.is_ready = False
    world.model("many", *pods, state="Waking")
    other = world.pod()
    world.model("m", other, state="Waking", namespace="other")
    world.start()
    asked = [
        world.background(lambda m=m: world.post(json={"model": m, "messages": []})) for m in ("many", "m")
    ]
    assert [answer.result(60).status_code for answer in asked] == [200, 200]
    assert world.gateway._prober._of_namespace.total() == 0
