"""Services of models take none of the cluster's addresses, those made before included."""

from recording_cluster import World


def service_of(world):
    (found,) = world.indexes["Service"]["a/chat"]
    return found["spec"]


def with_address(world):
    """The world's Service as an earlier version made it."""
    (found,) = world.indexes["Service"]["a/chat"]
    port = {**found["spec"]["ports"][0], "port": 80}
    found["spec"] = {**found["spec"], "clusterIP": "10.0.0.1", "ports": [port]}
    found["metadata"]["uid"] = "s1"
    world.writes.clear()


def test_a_service_takes_no_address():
    world = World()
    world.reconcile()
    assert service_of(world)["clusterIP"] == "None"
    assert service_of(world)["ports"][0]["port"] == 8000  # nothing translates ports of a headless Service


def test_a_service_with_an_address_gives_it_up_once_the_model_sleeps():
    world = World({"replicas": 0})
    world.reconcile()
    with_address(world)
    world.reconcile()
    assert world.writes == ["-Service", "Service"]
    assert service_of(world)["clusterIP"] == "None"
    world.writes.clear()
    world.reconcile()
    assert world.writes == []


def test_a_model_with_pods_keeps_address_and_port_until_then():
    """Its endpoints would be gone for a moment."""
    world = World({"replicas": 1})
    world.pod("chat-1")
    world.reconcile()
    with_address(world)
    for _ in range(2):
        world.reconcile()
        assert service_of(world).get("clusterIP", "10.0.0.1") == "10.0.0.1"  # another is refused
        assert service_of(world)["ports"][0]["port"] == 80
        service_of(world)["clusterIP"] = "10.0.0.1"  # as the API server keeps it
    assert world.writes == ["Service"]
