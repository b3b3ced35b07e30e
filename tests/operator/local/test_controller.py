"""The reconcile loop of one machine without processes: one model's error leaves the others alone."""

import asyncio
import logging
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from wisp_operator import api
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.fit.verdict import FitReport, FitResult
from wisp_operator.core.observation import Failure, Observation
from wisp_operator.core.runtime_state import RuntimeState
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.local.admission import ServedNameTaken
from wisp_operator.local.controller import Controller
from wisp_operator.local.processes.exit_log import ExitLog


class FakeCluster:
    """Has no pods; applying the model ``broken`` fails."""

    def __init__(self):
        self.deleted = []

    def pods(self, key):
        return []

    def apply(self, key, deployment):
        if key == "default/broken":
            raise RuntimeError("no such thing")

    def delete(self, key):
        self.deleted.append(key)


def model(name, **spec):
    return api.parse(
        {
            "apiVersion": api.API_VERSION,
            "kind": api.KIND,
            "metadata": {"name": name},
            "spec": {"model": {"uri": "hf://org/name"}, "gpu": {"count": 0}, **spec},
        }
    )


def called(found, served):
    return replace(found, spec=replace(found.spec, model=replace(found.spec.model, served_name=served)))


async def not_asked(_):
    return FitResult(FitReport("Unknown", "not asked"))


def controller(published, fit=not_asked):
    return Controller(
        FakeCluster(), fit=fit, publish=published.append, settings=BuildSettings(), tokens=TokenKeys(None)
    )


def test_a_model_that_fails_to_reconcile_is_logged_once_and_the_others_go_on(caplog):
    async def run():
        published = []
        loop = controller(published)
        await loop.set_models([model("broken"), model("whole")])
        for _ in range(3):
            loop.reconcile_now()
        return published[-1]

    entries = asyncio.run(run())
    assert [entry["name"] for entry in entries] == ["whole"]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "default/broken stays as it is" in message
    assert "no such thing" in message


def test_two_models_of_one_served_name_the_first_keeps_it_and_the_log_says_so(caplog):
    async def run():
        published = []
        loop = controller(published)
        second = replace(called(model("two"), "one"), namespace="other")
        await loop.set_models([model("one")])
        loop.reconcile_now()
        await loop.set_models([model("one"), second])
        loop.reconcile_now()
        loop.reconcile_now()
        return loop, published[-1]

    loop, entries = asyncio.run(run())
    assert [entry["names"] for entry in entries] == [["one"], ["two"]]
    assert loop.statuses["other/two"].condition("Named").reason == "ServedNameTaken"
    logged = [message for message in caplog.messages if "ServedNameTaken" in message]
    assert len(logged) == 1
    assert "'one' is the name of a model of another namespace." in logged[0]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            ("chat", "chat"),
            "default/two asks for the name 'chat' (spec.model.servedName), which is that of default/one",
        ),
        (("one", "one"), "default/two asks for the name 'one'"),
        (
            ("two", "two"),
            "default/one asks for the name 'two' (spec.model.servedName), which is that of default/two",
        ),
    ],
)
def test_two_models_of_a_namespace_that_ask_for_one_name_are_refused_at_load(names, sentence):
    async def run():
        await controller([]).set_models(
            [called(model(n), s) for n, s in zip(("one", "two"), names, strict=True)]
        )

    with pytest.raises(ServedNameTaken, match=re.escape(sentence)):
        asyncio.run(run())


def test_a_directory_that_cannot_be_written_is_logged_once_and_again_when_it_can(caplog):
    def publish(entries):
        if failing:
            raise OSError(28, "No space left on device")

    async def run():
        caplog.set_level(logging.INFO)
        loop = controller([])
        loop._publish = publish
        for is_failing in (True, True, False, False):
            failing[:] = [True] * is_failing
            loop.reconcile_now()
        return [record.levelname for record in caplog.records]

    failing = []
    assert asyncio.run(run()) == ["ERROR", "INFO"]


def test_a_changed_served_name_answers_beside_the_new_one_until_the_pods_have_it():
    async def run():
        published = []
        loop = controller(published)
        pod = SimpleNamespace(is_draining=False, runtime=RuntimeState(model="alpha"))
        loop._cluster.pods = lambda key: [pod]
        for served, reported in [("alpha", "alpha"), ("beta", "alpha"), ("beta", "beta")]:
            await loop.set_models([called(model("one"), served)])
            pod.runtime = RuntimeState(model=reported)
            names = loop._claim(loop.models[0]).names
            loop.statuses["default/one"] = SimpleNamespace(names=tuple(names), refused_names=())
            published.append(sorted(names))
        return published

    assert asyncio.run(run()) == [["alpha", "one"], ["alpha", "beta", "one"], ["beta", "one"]]


@pytest.mark.parametrize("after", [["b"], ["b", "c"], []])
def test_a_reconcile_while_the_models_change_has_the_old_ones_or_the_new(after):
    """The fit of a new model is checked beside the loop, which goes on meanwhile."""

    async def run():
        published = []
        loop = controller(published, fit=slow)
        await loop.set_models([model("a")])
        changing = asyncio.create_task(loop.set_models([model(name) for name in after]))
        while not changing.done():
            loop.reconcile_now()
            await asyncio.sleep(0.01)
        loop.reconcile_now()
        return published

    published = asyncio.run(run())
    assert {tuple(entry["name"] for entry in entries) for entries in published} <= {("a",), tuple(after)}
    assert [entry["name"] for entry in published[-1]] == after


async def slow(_):
    await asyncio.sleep(0.1)
    return FitResult(FitReport("Unknown", "not known"))


@pytest.mark.parametrize("turns", range(4))  # of the event loop between the event and the cancellation
def test_the_loop_ends_even_if_something_happens_as_it_is_cancelled(turns):
    async def run():
        loop = controller([])
        running = asyncio.create_task(loop.run())
        await asyncio.sleep(0.05)
        loop.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running}, timeout=60)
        ended = running.done()
        running.cancel()
        return ended

    assert asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (Failure("Killed", "The process was killed by SIGKILL.", 1.0, 137), "died (signal 9)"),
        (Failure("ModelNotFound", "/x is not there.", 1.0, 1), "ended (ModelNotFound): /x is not there"),
        (
            Failure("Crashed", "The process ended with exit code 200.", 1.0, 200),
            "ended (Crashed): The process",
        ),
    ],
)
def test_a_pod_that_ends_is_logged_once(failure, says, caplog):
    class EndedPod:
        name, failures, last_failure, log = "chat-1", 1, failure, Path("/run/chat-1.log")

    exit_log = ExitLog(are_logs_kept=True)
    with caplog.at_level(logging.WARNING):
        exit_log.log_new("default/chat", [EndedPod()])
        exit_log.log_new("default/chat", [EndedPod()])
    (message,) = caplog.messages
    assert message.startswith(f"pod chat-1 {says}")
    assert message.endswith("; starting again; log: /run/chat-1.log")


def test_a_message_that_refers_to_a_log_gets_its_path():
    class EndedPod:
        name, failures, log = "chat-1", 1, Path("/run/chat-1.log")
        last_failure = Failure("EngineDied", "it ended; see its log, or the kernel's", 1.0, 1)

    exit_log = ExitLog(are_logs_kept=True)
    exit_log.log_new("a/chat", [EndedPod()])
    observation = exit_log.with_log_path("a/chat", Observation(last_failure=EndedPod.last_failure))
    assert observation.last_failure.message == "it ended; see its log (/run/chat-1.log), or the kernel's"


def test_one_check_of_a_model_runs_at_a_time_and_ends_with_the_model():
    running = []

    async def endless(model):
        running.append(model.name)
        try:
            await asyncio.sleep(60)
        finally:
            running.remove(model.name)

    async def run():
        loop = controller([], fit=endless)
        await loop.set_models([model("a")])
        changed = replace(model("a"), spec=replace(model("a").spec, suspend=True))
        await loop.set_models([changed])
        assert running == ["a"]
        await loop.set_models([])
        await asyncio.sleep(0)
        assert running == []

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("wisp_operator.local.controller.FIT_WAIT_S", 0.05)
        asyncio.run(run())


def test_fields_that_only_a_cluster_follows_are_named_once(caplog):
    podded = model("chat", resources={"limits": {"memory": "8Gi"}}, podTemplate={"labels": {"team": "a"}})

    async def run():
        loop = controller([])
        for _ in range(2):
            await loop.set_models([podded, model("plain")])

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    (named,) = [message for message in caplog.messages if "only a cluster" in message]
    assert named == "default/chat: only a cluster follows spec.resources, spec.podTemplate; ignored here"
