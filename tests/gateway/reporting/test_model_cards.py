"""``/v1/models``: the context of each model, once a pod has reported it."""

from __future__ import annotations


def cards(world, path="/v1/models"):
    document = world.http.get(world.url + path).json()
    return {card["id"]: card for card in document.get("data", [document])}


def test_a_models_card_has_its_context_as_its_runtimes_has_also_when_it_sleeps(world):
    pod = world.pod()
    pod.state = {"ledger": {"maxContext": 4096}}
    world.model("m", pod)
    world.model("asleep", state="Asleep")
    world.start()
    world.until(lambda: "max_model_len" in cards(world)["m"])  # the first look begins to read
    for path in ("/v1/models", "/v1/models/m", "/default/m/v1/models"):
        assert cards(world, path)["m"]["max_model_len"] == 4096
    assert "max_model_len" not in cards(world)["asleep"]
    world.model("m", state="Asleep")
    assert cards(world)["m"]["max_model_len"] == 4096
    reads = pod.states_read
    cards(world)
    assert pod.states_read == reads


def test_a_pod_that_reports_none_is_asked_ever_less_often(world):
    pod = world.pod()
    pod.state = {"ledger": "none"}
    world.model("m", pod)
    world.start()
    world.until(lambda: cards(world) and pod.states_read)
    began = pod.states_read
    for _ in range(100):
        assert "max_model_len" not in cards(world)["m"]
    assert pod.states_read < began + 20
