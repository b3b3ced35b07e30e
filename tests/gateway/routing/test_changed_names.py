"""A model whose ``servedName`` changes while pods of the old and the new name run."""

from __future__ import annotations

import json

import pytest


def knows(world, *names):
    """A pod that answers to ``names`` and knows no other, as the runtime does."""
    talk = world.does.talk()
    unknown = json.dumps({"error": {"message": "?", "code": "model_not_found"}}).encode()

    async def handle(pod, seen, writer):
        if seen.json["model"] in names:
            await talk(pod, seen, writer)
        else:
            writer.write(world.answer(404, unknown))

    return world.pod(handle)


def statuses(world, *names):
    return [world.post(json={"model": name, "messages": []}).status_code for name in names]


@pytest.mark.parametrize("known", [("alpha", "m"), ("alpha",)])
def test_old_and_new_name_answer_while_only_the_old_pod_is_there(world, known):
    """The surge pod may have no room for ever. A runtime of an earlier release has its served name alone."""
    pod = knows(world, *known)
    world.model("m", pod, servedName="alpha", names=["alpha", "m"])
    world.start()
    assert statuses(world, "alpha", "m", "default/m") == [200] * 3
    world.model("m", pod, servedName="beta", names=["alpha", "m"])  # before the operator has seen it
    assert statuses(world, "alpha", "beta", "m", "default/m") == [200] * 4
    world.model("m", pod, servedName="beta", names=["alpha", "beta", "m"])
    assert statuses(world, "alpha", "beta", "m", "default/m") == [200] * 4


def test_the_old_name_answers_under_the_models_own_path_too(world):
    world.model("m", knows(world, "beta", "m"), servedName="beta", names=["alpha", "beta", "m"])
    world.start()
    path = "/default/m/v1/chat/completions"
    answers = [world.post(path, json={"model": name, "messages": []}) for name in ("alpha", "beta", "gamma")]
    assert [answer.status_code for answer in answers] == [200, 200, 404]


def test_pods_of_both_names_are_asked_by_the_name_that_they_have(world):
    old, new = knows(world, "alpha"), knows(world, "beta", "m")
    world.model("m", old, new, servedName="beta", names=["alpha", "beta", "m"], routing="LeastLoad")
    world.start()
    assert statuses(world, *["alpha", "beta"] * 4) == [200] * 8
    assert [seen.json["model"] for seen in new.seen] == ["m"] * 4
    asked = [seen.json["model"] for seen in old.seen]
    assert set(asked[-3:]) == {"alpha"}  # learned once
    world.model("m", new, servedName="beta", names=["beta", "m"])
    assert statuses(world, "alpha", "beta") == [404, 200]


def test_a_pod_of_another_model_at_a_reused_address_is_no_404(world):
    """The model exists: its client waits, or gets a 503 with Retry-After, until the endpoints are right."""
    stranger = knows(world, "other")
    world.model("m", stranger)
    answer = world.start().post()
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    world.model("m", stranger, knows(world, "m"))
    assert statuses(world, *["m"] * 4) == [200] * 4
