"""Names that change, meet, go and come back, under load: a model that is there is never 404."""

import time

import pytest
from fault_table import TINY, WARM, needs_our_node, table
from kube import apply, get, kubectl, model, until
from namespaces import make_namespace, remove_namespace

FAULTS, fault = table()
MISSING = ("404 model_not_found",)
OTHER = "wisp-faults-other"
CHILDREN = {"deployment": 1, "replicaset": 1, "pod": 1, "service": 1, "endpointslice": 1}


def misses(found, name):
    """Unix seconds of the first and the last request for a name that was 404; None if none was."""
    seen = found["labels"].get(name, {}).get("404 model_not_found")
    return seen and (seen["first"], seen["last"])


def both_names_answer(scene, found):
    """The old name until every pod knows the new one, the new one at once, the key always."""
    old, new = scene.marks["names"]
    assert not misses(found, scene.key), misses(found, scene.key)
    assert (gone := misses(found, old)) is None or gone[0] >= scene.marks["rolled"] - 0.2, (
        gone[0] - scene.began
    )
    patched = scene.marks["patched"]
    assert (absent := misses(found, new)) is None or absent[1] <= patched + 1, absent[1] - patched


@fault(
    "servedName alpha to beta",
    is_apart=True,
    spec=WARM | {"model": {"servedName": "alpha"}},
    names=("{}", "alpha", "beta"),
    errors=MISSING,
    check=both_names_answer,
)
def name_changes(scene):
    scene.marks["names"] = ("alpha", "beta")
    before = scene.pods()
    scene.patch(model={"servedName": "beta"})
    scene.marks["patched"] = time.time()
    until(lambda: scene.is_replaced(before), seconds=90, every=0.02)
    scene.marks["rolled"] = time.time()


@fault(
    "the same without room for a surge pod, 12 s",
    spec=WARM | {"model": {"servedName": "gamma"}},
    names=("{}", "gamma", "delta"),
    errors=MISSING,
    says=[("Scheduled", "False", "Unschedulable")],
    check=both_names_answer,
)
def name_changes_without_room(scene):
    scene.marks["names"] = ("gamma", "delta")
    before, node = scene.pods(), get("nodes")[0]["metadata"]["name"]
    kubectl("cordon", node)
    try:
        scene.patch(model={"servedName": "delta"})
        scene.marks["patched"] = time.time()
        time.sleep(12)
        assert {code for code, *_ in map(scene.ask_by, (scene.key, "gamma", "delta"))} == {200}
    finally:
        kubectl("uncordon", node)
    until(lambda: scene.is_replaced(before), seconds=90, every=0.02)
    scene.marks["rolled"] = time.time()


@fault("deleted and made again 20 times in 20 s", is_apart=True, errors=MISSING)
def model_comes_and_goes(scene):
    spec = {"model": TINY, **WARM}
    for _ in range(20):
        kubectl("delete", "imodel", scene.name, "-n", scene.namespace, "--wait=false")
        until(lambda: not scene.model(), seconds=20, every=0.02)
        apply(model(scene.name, **spec), namespace=scene.namespace)
        until(lambda: scene.model(), every=0.02)
    scene.serves()
    until(lambda: left(scene) == CHILDREN, seconds=60)


def left(scene):
    """How many objects of the model there are, by kind."""
    named = {kind: get(kind, namespace=scene.namespace) for kind in CHILDREN}
    is_ours = f"{scene.name}-"
    return {
        kind: sum(f"{thing['metadata']['name']}-".startswith(is_ours) for thing in things)
        for kind, things in named.items()
    }


@fault(
    "the same servedName in its namespace and in another",
    is_apart=True,
    spec=WARM | {"model": {"servedName": "epsilon"}},
    names=("{}", "epsilon"),
    says=[("Named", "True", "NameHeld")],
)
def name_is_asked_for_twice(scene):
    second = scene.asleep("second", model={"servedName": "epsilon"})
    make_namespace(OTHER)
    apply(model("third", model={"uri": TINY["uri"], "servedName": "epsilon"}), namespace=OTHER)
    refused = ("False", "ServedNameTaken")
    until(lambda: scene.condition("Named", second) == refused, seconds=5)
    truth = scene.world.truth(OTHER)
    until(lambda: any(kind[1:] == refused for kind in truth.said("third", 0)[0]), seconds=5)
    time.sleep(3)
    until(lambda: "ServedNameTaken" in scene.events(second))
    scene.forget(second)
    remove_namespace(OTHER)


@pytest.mark.parametrize("row", FAULTS, ids=str)
@needs_our_node
def test_no_name_of_a_model_that_is_there_is_missing(under_load, row):
    under_load(row)
