"""Modules about models by themselves: wakes, words of states and reasons, buttons of a card."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("model", "heartbeat", "current", "progress"),
    [
        (None, "", "", None),
        (None, "weights 62 %", "weights", 0.62),  # the key shows no state: the heartbeat alone tells
        ({"phase": "weights", "progress": 0.5, "startPhases": []}, "weights 62 %", "weights", 0.5),
        ({"phase": None, "startPhases": [{"name": "pull", "progress": 0.1}]}, "", "pull", 0.1),
        (
            {"phase": "kernels", "startPhases": [{"name": "pull", "progress": 1}]},
            "weights 62 %",
            "kernels",
            None,
        ),
    ],
)
def test_a_wake_is_as_far_as_its_newest_report(call, model, heartbeat, current, progress):
    wake = call("models/phases.js", "m.wakeOf(...argument)", [model, heartbeat])
    assert (wake["current"], wake["progress"]) == (current, progress)


@pytest.mark.parametrize(
    ("model", "is_locked", "buttons"),
    [
        ({"state": "Asleep", "canStop": True}, False, ["wake", "chat"]),
        ({"state": "Waking", "canStop": True}, False, ["chat", "stop"]),
        ({"state": "Ready", "canStop": True}, False, ["chat", "stop"]),
        ({"state": "Ready", "canStop": False}, False, ["chat"]),
        ({"state": "Failed", "canStop": True}, False, []),
        ({"state": "Asleep", "canStop": True}, True, ["wake", "key"]),  # the key is for requests
        ({"state": "Ready", "canStop": True}, True, ["key", "stop"]),
        ({"state": "Ready", "canStop": False}, True, ["key"]),
        ({"state": "Failed", "canStop": True}, True, ["key"]),
    ],
)
def test_a_card_has_the_buttons_of_its_state_and_key(call, model, is_locked, buttons):
    assert call("views/model_actions.js", "m.actionsOf(...argument)", [model, is_locked]) == buttons


@pytest.mark.parametrize(
    ("actions", "note"),
    [
        (["wake", "key"], "; waking it here doesn’t"),
        (["key", "stop"], "; stopping it here doesn’t"),
        (["key"], ""),
    ],
)
def test_a_card_without_its_key_says_what_needs_none(call, actions, note):
    assert call("views/model_actions.js", "m.noteOf(argument)", actions) == note


@pytest.mark.parametrize(
    ("running", "text"),
    [(0, "has just ended"), (1, "One request is running. It"), (2, "2 requests are running. They")],
)
def test_a_stop_says_what_becomes_of_the_requests_that_run(call, running, text):
    assert text in call("views/model_actions.js", "m.runningText(argument)", running)


@pytest.mark.parametrize(
    ("idle", "after", "can_stop", "text"),
    [
        (None, None, True, "No request is running"),
        (None, 300, True, "No request is running"),
        (2.0, None, True, "No request is running"),
        (59.2, None, True, "No request for 59 s"),
        (59.2, 300, True, "No request for 59 s; sleeps in 4 min 1 s"),
        (59.2, 300, False, "No request for 59 s"),  # a cluster's other gateways may be asked
        (2.0, 60.0, True, "No request is running; sleeps in 58 s"),
        (63.0, 60.0, True, "No request for 1 min 3 s; goes to sleep now"),
        (64.0, 60.0, True, "No request for 1 min 4 s"),  # something else keeps it up
    ],
)
def test_an_idle_model_says_since_when_and_until_when(call, idle, after, can_stop, text):
    model = {"idleSeconds": idle, "idleAfterSeconds": after, "canStop": can_stop}
    assert call("models/states.js", "m.idleText(argument)", model) == text


MODEL = {"namespace": "a", "name": "m"}


def wake_row(key="a/m", outcome="running", seconds=3.5):
    return {"key": key, "outcome": outcome, "seconds": seconds}


@pytest.mark.parametrize(
    ("model", "wakes", "seconds"),
    [
        (MODEL, [wake_row(outcome="ready"), wake_row(seconds=6.2)], 6.2),
        (MODEL | {"startPhases": [{"seconds": 1.0}, {"seconds": 2.5}]}, [], 3.5),
        (MODEL | {"startPhases": [{"seconds": 1.0}]}, [wake_row(key="a/other")], 1.0),
        (MODEL, [], 0),
    ],
)
def test_a_wake_has_lasted_what_its_row_or_its_phases_say(call, model, wakes, seconds):
    assert call("models/phases.js", "m.wakeSecondsOf(...argument)", [model, wakes]) == seconds


@pytest.mark.parametrize(
    ("model", "wakes", "seconds"),
    [
        (MODEL | {"lastColdStartSeconds": 2.1}, [wake_row(outcome="ready")], 2.1),
        (MODEL | {"lastColdStartSeconds": None}, [wake_row(outcome="ready"), wake_row()], 3.5),
        (MODEL, [wake_row(outcome="failed"), wake_row(key="a/other", outcome="ready")], None),
    ],
)
def test_the_last_wake_of_a_model_is_known_from_its_document_or_from_the_wakes(call, model, wakes, seconds):
    assert call("models/phases.js", "m.lastWakeSecondsOf(...argument)", [model, wakes]) == seconds


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("DoesNotFit", "Does not fit"),
        ("OOMKilled", "OOMKilled"),
        ("GpuOutOfMemory", "Gpu out of memory"),
        ("", ""),
    ],
)
def test_a_reason_is_shown_as_words(call, reason, words):
    assert call("models/reasons.js", "m.wordsOf(argument)", reason) == words


MODELS = [
    {"namespace": "a", "name": "m", "servedName": "m", "state": "Ready"},
    {"namespace": "b", "name": "m", "servedName": "big", "state": "Asleep"},
]


@pytest.mark.parametrize(
    ("name", "namespace", "state"),
    [("m", "a", "Ready"), ("b/m", "b", "Asleep"), ("big", "b", "Asleep"), ("m", "c", None)],
)
def test_a_name_that_the_key_opens_has_the_state_of_its_model(call, name, namespace, state):
    cards = [{"id": name, "owned_by": namespace}]
    (choice,) = call("models/catalog.js", "m.choicesOf(...argument)", [cards, MODELS])
    assert (choice["id"], choice.get("state")) == (name, state)


RUNNING = {"key": "a/m", "began": 100, "outcome": "running"}
ENDED = RUNNING | {"outcome": "ready"}
LATER = RUNNING | {"began": 200}


@pytest.mark.parametrize(
    ("history", "page", "wakes"),
    [
        ([], [RUNNING], []),  # the gateway was started anew
        ([LATER], [RUNNING], [LATER]),
        ([LATER], [ENDED], [ENDED, LATER]),
        ([RUNNING], [ENDED], [ENDED]),  # the page knows more
        ([RUNNING], [LATER], [RUNNING]),
    ],
)
def test_a_wake_that_the_gateway_no_longer_knows_does_not_run(call, history, page, wakes):
    merged = call("feed.js", "m.mergedWakes(...argument)", [history, page])
    assert [{name: wake[name] for name in RUNNING} for wake in merged] == wakes


def test_wakes_are_in_the_order_of_their_begins(call):
    merged = call("feed.js", "m.mergedWakes(...argument)", [[LATER, ENDED], []])
    assert [wake["began"] for wake in merged] == [100, 200]


@pytest.mark.parametrize(
    ("message", "is_told"),
    [
        ("needs 24 GiB, this machine has 6 GiB free", True),
        ("needs 24 GiB, this machine has 6 GiB free. Tried 3 times.", True),
        ("needs 24 GiB, this machine has 6 GiB free. Shorten runtime.maxContext. Tried 3 times.", False),
    ],
)
def test_a_reason_without_a_remedy_of_its_own_gets_one(call, message, is_told):
    assert bool(call("models/reasons.js", "m.remedyOf('DoesNotFit', argument)", message)) is is_told
